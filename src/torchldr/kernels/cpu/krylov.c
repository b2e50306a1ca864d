/* Krylov columns of tridiagonal operators with two corners, and their adjoint: see krylov.h. */
#include "common.h"

#include <string.h>

#define LANES 16 /* entries that a loop takes at once, at least */

#define REAL float
#define NAMED(name) name##_f32
#include "krylov.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_f64
#include "krylov.h"
