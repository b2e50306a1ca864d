/* The version of the interface: library.py refuses a library that was built from other sources. */
#include "common.h"

LDR_API int64_t ldr_interface(void) { return 1; }
