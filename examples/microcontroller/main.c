/* Classify the test images: print what is predicted, how many are right, how many instructions one takes. */
#include <stdint.h>
#include <stdio.h>

#include "images.h"
#include "model.h"

/* SysTick counts down 24 bits. QEMU with -icount shift=0 runs one instruction a nanosecond. */
#define SYSTICK ((volatile uint32_t *)0xE000E010)
#define NANOSECONDS 1000000000u

#ifdef MODEL_INPUT_SCALE /* a model in integers */
typedef int8_t number;
#define INPUT(pixel) ((number)((pixel) != 0 ? MODEL_QUANTIZE(1.0f) : MODEL_QUANTIZE(0.0f)))
#else
typedef float number;
#define INPUT(pixel) ((number)(pixel))
#endif

int main(void)
{
    static number x[MODEL_INPUT_SIZE], y[MODEL_OUTPUT_SIZE];
    int right = 0;
    uint64_t ticks = 0;
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* on, by the processor's clock */
    printf("predictions   ");
    for (int i = 0; i < IMAGES; i++) {
        int best = 0;
        uint32_t before;
        for (int j = 0; j < MODEL_INPUT_SIZE; j++)
            x[j] = INPUT(images[i][j]);
        before = SYSTICK[2];
        model_run(x, y);
        ticks += (before - SYSTICK[2]) & 0xFFFFFF;
        for (int j = 1; j < MODEL_OUTPUT_SIZE; j++)
            best = y[j] > y[best] ? j : best;
        right += best == labels[i];
        if (i < 20)
            printf("%d ", best);
    }
    printf("..\naccuracy      %d of %d\n", right, IMAGES);
    printf("instructions  %lu an image\n", (unsigned long)(ticks * (NANOSECONDS / 1000u) / (HERTZ / 1000u) / IMAGES));
    printf("weights       %d bytes of flash\n", MODEL_WEIGHT_BYTES);
    printf("arena         %d bytes of RAM\n", MODEL_ARENA_BYTES);
    return 0;
}
