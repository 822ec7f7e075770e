// The values of numbers of four bits: those of ggml-common.h of llama.cpp, and of bitsandbytes'
// functional.py. REDCO_CODE(name) declares a table of 16 floats.

REDCO_CODE(iq4_values) = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice those of E2M1.
REDCO_CODE(mxfp4_values) = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

REDCO_CODE(nf4_values) = {-1.0f,
                          -0.6961928009986877f,
                          -0.5250730514526367f,
                          -0.39491748809814453f,
                          -0.28444138169288635f,
                          -0.18477343022823334f,
                          -0.09105003625154495f,
                          0.0f,
                          0.07958029955625534f,
                          0.16093020141124725f,
                          0.24611230194568634f,
                          0.33791524171829224f,
                          0.44070982933044434f,
                          0.5626170039176941f,
                          0.7229568362236023f,
                          1.0f};

// A sign, and the numbers of two bits of exponent and one of mantissa divided by 12.
REDCO_CODE(fp4_values) = {0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  1.0f,
                          4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
                          0.0f,          -0.0625f / 12.0f, -8.0f / 12.0f, -1.0f,
                          -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};
