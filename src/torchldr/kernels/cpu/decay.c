/* X_ij += node_i X_{i, j-1} along the rows of stacked matrices, in place: sums that decay by the row's node. */
#include "common.h"

#define AT_ONCE 8 /* rows side by side: within a row each number waits for the one before */

#define REAL float
#define NAMED(name) name##_f32
#include "decay.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_f64
#include "decay.h"
