/* The dense matrices of LDR-SD, Toeplitz-like and their kin, and all their gradients: see scan.h. */
#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16     /* columns that a loop takes at once, at least */
#define MOST 4.0     /* weight of paths around that may cancel, once or for ever: two bits are lost */
#define GROWTH 256.0 /* the same for gradients, multiplied by the growth on the way */
#define KEPT 16      /* rows between two checkpoints of the general form */

enum { PREPARE, AROUND, TURN, MAIN, FINISH, ALL }; /* phases */
enum { PLAIN, ROUND, GENERAL };                    /* regimes: A's corner is 0, some paths go around, heavy ones do */

#define REAL float
#define NAMED(name) name##_f32
#include "scan_weights.h"
#include "scan_rows.h"
#include "scan_general.h"
#include "scan.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_f64
#include "scan_weights.h"
#include "scan_rows.h"
#include "scan_general.h"
#include "scan.h"
