#pragma once

/// Marks a function to be compiled for several instruction sets, of which the loader selects one.
/// Floating-point results are identical: the code is compiled with -ffp-contract=off.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REDCO_VECTORIZE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REDCO_VECTORIZE
#endif
