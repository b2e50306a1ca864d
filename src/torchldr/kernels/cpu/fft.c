/* The FFT that all products share: of one vector, complex, by powers of two. */
#include <math.h>

#include "common.h"

#define REAL float
#define INDEX int32_t /* as wide */
#define NAMED(name) name##_f32
#include "fft.h"
#undef REAL
#undef INDEX
#undef NAMED
#define REAL double
#define INDEX int64_t
#define NAMED(name) name##_f64
#include "fft.h"
