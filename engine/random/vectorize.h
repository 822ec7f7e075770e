#pragma once

/// Before a function whose loops are worth compiling for several instruction sets; the loader
/// picks one. Floating-point results do not differ: we compile with -ffp-contract=off.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REDCO_VECTORIZE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REDCO_VECTORIZE
#endif
