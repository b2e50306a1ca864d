/* Products of two subdiagonal operators by convolutions, with all their gradients. */
#include <math.h>

#include "common.h"

#define REAL float
#define NAMED(name) name##_f32
#include "convolution.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) name##_f64
#include "convolution.h"
