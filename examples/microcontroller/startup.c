/* What runs before main on a Cortex-M: the vector table, the floating point unit, data and zeros. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t _data_source, _data_start, _data_end, _bss_start, _bss_end, _stack;
extern void initialise_monitor_handles(void); /* semihosting: printf goes to the emulator's terminal */
extern int main(void);

void reset(void);
static void fault(void);

void _init(void) {} /* of C++ constructors, which the library asks for */
void _fini(void) {}

/* The stack, then reset, NMI and the faults. */
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handlers[6])(void);
} vectors = {&_stack, {reset, fault, fault, fault, fault, fault}};

void reset(void)
{
    uint32_t *from = &_data_source;
#ifdef __ARM_FP
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: access to the floating point unit */
    __asm volatile("dsb\n isb");
#endif
    for (uint32_t *to = &_data_start; to < &_data_end;)
        *to++ = *from++;
    for (uint32_t *to = &_bss_start; to < &_bss_end;)
        *to++ = 0;
    initialise_monitor_handles();
    exit(main());
}

static void fault(void)
{
    exit(3);
}
