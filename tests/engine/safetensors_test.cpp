#include <redco/safetensors.h>

#include <doctest/doctest.h>
