LDR_API void NAMED(decay)(int64_t start, int64_t stop, int64_t m, int64_t n, const REAL *nodes, REAL *X)
{
    ldr_mode mode = ldr_flush();
    for (int64_t i = start; i < stop;) { /* rows of all matrices, whose nodes repeat every m */
        int64_t rows = i + AT_ONCE <= stop ? AT_ONCE : 1;
        REAL node[AT_ONCE], last[AT_ONCE], *row = X + i * n;
        for (int64_t k = 0; k < rows; k++)
            node[k] = nodes[(i + k) % m], last[k] = 0;
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < rows; k++)
                row[k * n + j] = last[k] = node[k] * last[k] + row[k * n + j];
        i += rows;
    }
    ldr_restore(mode);
}
