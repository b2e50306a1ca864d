/* The dense matrices of LDR-SD, Toeplitz-like and their kin, and all their gradients: see scan.h. */
#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16   /* diagonals that loops take at a time at least */
#define ROWS 4     /* rows of a tile */
#define STRIP 1024 /* diagonals of a tile */
#define WIDTH (STRIP + 2 * LANES)
#define PAD (4 * LANES)
#define MOST 4.0      /* weight of a whole round that may cancel: two bits are lost */
#define GROWTH 256.0  /* the same where it is multiplied by the growth within a round */
#define SHRINKS 0.5   /* rounds that sum to a geometric series */
#define KEPT 16       /* rows between two checkpoints of the general form */

enum { PREPARE, AROUND, TURN, MAIN, FINISH, PHASES, ALL = PHASES };
enum { PLAIN, ROUND, GENERAL };

#define REAL float
#define NAMED(name) name##_f32
#include "scan.h"
#undef REAL
#undef NAMED

#define REAL double
#define NAMED(name) name##_f64
#include "scan.h"
