/* Classify the test images and count: how many are right, and how many instructions one takes. */
#include <stdint.h>
#include <stdio.h>

#include "images.h"
#include "model.h"

/* SysTick counts down 24 bits at 25 MHz. QEMU with -icount shift=0 runs one instruction a nanosecond. */
#define SYSTICK ((volatile uint32_t *)0xE000E010)
#define INSTRUCTIONS_A_TICK 40u

int main(void)
{
    static float x[MODEL_INPUT_SIZE], y[MODEL_OUTPUT_SIZE];
    int right = 0;
    uint64_t ticks = 0;
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* on, by the processor's clock */
    for (int i = 0; i < IMAGES; i++) {
        int best = 0;
        uint32_t before;
        for (int j = 0; j < MODEL_INPUT_SIZE; j++)
            x[j] = (float)images[i][j];
        before = SYSTICK[2];
        model_run(x, y);
        ticks += (before - SYSTICK[2]) & 0xFFFFFF;
        for (int j = 1; j < MODEL_OUTPUT_SIZE; j++)
            best = y[j] > y[best] ? j : best;
        right += best == labels[i];
    }
    printf("accuracy      %d of %d\n", right, IMAGES);
    printf("instructions  %lu an image\n", (unsigned long)(ticks * INSTRUCTIONS_A_TICK / IMAGES));
    printf("weights       %d bytes of flash\n", MODEL_WEIGHT_BYTES);
    printf("arena         %d bytes of RAM\n", MODEL_ARENA_BYTES);
    return 0;
}
