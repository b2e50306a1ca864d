/* Elimination on generators, in float64 and complex128, and forward substitution. */
#include "common.h"

#define TILE 512

LDR_INLINE double magnitude(double x) { return x < 0 ? -x : x; }

#define PARTS 1
#define NAMED(name) name##_f64
#include "gko.h"
#undef PARTS
#undef NAMED
#define PARTS 2
#define NAMED(name) name##_c_f64
#include "gko.h"

/* Solve with the lower triangular Toeplitz matrix of first column w for every row of B (p, n), in place. */
LDR_API LDR_CLONES void ldr_substitute_f64(const double *w, double *B, int64_t p, int64_t n)
{
    ldr_mode before = ldr_flush();
    for (int64_t row = 0; row < p; row++)
        for (int64_t i = 0; i < n; i++) {
            double y = B[row * n + i] / w[0], *restrict x = B + row * n + i + 1;
            const double *restrict v = w + 1;
            B[row * n + i] = y;
#pragma omp simd
            for (int64_t j = 0; j < n - i - 1; j++)
                x[j] -= y * v[j];
        }
    ldr_restore(before);
}
