/* Products with grids of circulant blocks, and their gradients. */
#include <math.h>

#include "common.h"

#define REAL float
#define NAMED(name) name##_f32
#include "circulant.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) name##_f64
#include "circulant.h"
