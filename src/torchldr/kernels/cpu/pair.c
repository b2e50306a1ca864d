/* Products with square matrices by a pair of circulant ones, for constants. */
#include "common.h"

#define REAL float
#define NAMED(name) name##_f32
#include "pair.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) name##_f64
#include "pair.h"
