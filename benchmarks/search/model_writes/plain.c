/* The problems of the emulated chips in plain C, as one writes it without thinking of the chip.
 * Before it: chip.h, the name of the problem, and on chips that compute on whole numbers WHOLE and
 * the type `element` of the inputs. */
#ifdef WHOLE
typedef int32_t number;
#else
typedef float element;
typedef float number;
#endif

static inline __attribute__((unused)) number larger(number a, number b) { return a > b ? a : b; }

#if defined(ELEMENTWISE)
void kernlore_run(const tensor *t) {
  const element *x = t[0].data, *y = t[1].data;
  number *out = t[2].data;
  for (int i = 0; i < t[0].elements; i++) out[i] = x[i] * 2 + larger(x[i], y[i]);
}

#elif defined(REDUCTION)
void kernlore_run(const tensor *t) {
  const element *x = t[0].data;
  number *out = t[1].data;
  const int rows = t[0].shape[0], columns = t[0].shape[1];
  for (int i = 0; i < rows; i++) {
    number sum = 0;
    for (int j = 0; j < columns; j++) sum += x[i * columns + j];
    out[i] = sum;
  }
}

#elif defined(NORM)
#ifdef WHOLE
static number scale_of(number squares, int columns) {
  (void)columns;
  number root = 0;
  for (int bit = 1 << 15; bit; bit >>= 1)
    if ((int64_t)(root + bit) * (root + bit) <= squares) root += bit;
  return 32768 / larger(root, 1);
}
#else
static number scale_of(number squares, int columns) {
  const float mean = squares / columns + 1e-5f;
  union { float value; int32_t bits; } root = {mean};
  root.bits = 0x5f3759df - (root.bits >> 1);
  for (int i = 0; i < 4; i++) root.value *= 1.5f - 0.5f * mean * root.value * root.value;
  return root.value;
}
#endif
void kernlore_run(const tensor *t) {
  const element *x = t[0].data, *weight = t[1].data;
  number *out = t[2].data;
  const int rows = t[0].shape[0], columns = t[0].shape[1];
  for (int i = 0; i < rows; i++, x += columns, out += columns) {
    number squares = 0;
    for (int j = 0; j < columns; j++) squares += (number)x[j] * x[j];
    const number scale = scale_of(squares, columns);
#ifdef WHOLE
    for (int j = 0; j < columns; j++) out[j] = (x[j] * scale * weight[j]) >> 8;
#else
    for (int j = 0; j < columns; j++) out[j] = x[j] * scale * weight[j];
#endif
  }
}

#elif defined(SOFTMAX)
#ifdef WHOLE
static inline number power(number below) {
  const number shift = below >> 4;
  return 256 >> (shift < 15 ? shift : 15);
}
#else
static inline number power(number below) { /* exp(-below) */
  const float halvings = below < 86.0f ? below * 1.44269504f : 124.0f;
  const int whole = (int)(halvings + 0.5f);
  const float part = below < 86.0f ? (float)whole * 0.693147181f - below : 0.0f;
  union { int32_t bits; float value; } two = {(127 - whole) << 23};
  const float series = 1.0f + part * (1.0f + part * (0.5f + part * (0.16666667f
      + part * (0.04166667f + part * (0.00833333f + part * 0.00138889f)))));
  return series * two.value;
}
#endif
void kernlore_run(const tensor *t) {
  const element *x = t[0].data;
  number *out = t[1].data;
  const int rows = t[0].shape[0], columns = t[0].shape[1];
  for (int i = 0; i < rows; i++, x += columns, out += columns) {
    number most = x[0], sum = 0;
    for (int j = 1; j < columns; j++) most = larger(most, x[j]);
    for (int j = 0; j < columns; j++) sum += out[j] = power(most - x[j]);
#ifdef WHOLE
    const number scale = 16777216 / sum;
    for (int j = 0; j < columns; j++) out[j] = (out[j] * scale) >> 8;
#else
    const number scale = 1.0f / sum;
    for (int j = 0; j < columns; j++) out[j] *= scale;
#endif
  }
}

#elif defined(SCAN)
void kernlore_run(const tensor *t) {
  const element *x = t[0].data;
  number *out = t[1].data;
  const int rows = t[0].shape[0], columns = t[0].shape[1];
  for (int i = 0; i < rows; i++) {
    number sum = 0;
    for (int j = 0; j < columns; j++) out[i * columns + j] = sum += x[i * columns + j];
  }
}

#else /* PRODUCT, TRANSPOSED_PRODUCT */
void kernlore_run(const tensor *t) {
  const element *a = t[0].data, *b = t[1].data;
  number *out = t[2].data;
#ifdef PRODUCT
  const int rows = t[0].shape[0], terms = t[0].shape[1], down = 1, along = terms;
#else
  const int terms = t[0].shape[0], rows = t[0].shape[1], down = rows, along = 1;
#endif
  const int columns = t[1].shape[1];
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < columns; j++) out[i * columns + j] = 0;
    for (int k = 0; k < terms; k++)
      for (int j = 0; j < columns; j++)
        out[i * columns + j] += (number)a[i * along + k * down] * b[k * columns + j];
  }
}
#endif
