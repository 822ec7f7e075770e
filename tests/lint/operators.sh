#!/bin/sh
# Checks that facts about operators stand in their rows, in engine/sharding/operators. Run it in the
# repository's folder.
#
# Other files may name operators to call them (findSchema), and: advice.cpp gives users texts about
# families without rules; trace/gpu_forms.cpp, composites.cpp and tracer.cpp follow choices that
# LibTorch makes itself; check_calls.cpp leaves calls out of its log; forward_watcher.cpp says in words
# what an operator does; without_values.cpp answers the one that reads a value.
set -eu

if grep -rEn --include='*.h' --include='*.cpp' '"(aten|redco)::[a-z_0-9]+\*?"' engine |
  grep -Ev '^engine/sharding/operators/|findSchema|: *//|///' |
  grep -Ev '^engine/sharding/(report/advice|call/composites|call/check_calls|auto_sharding/(forward_watcher|without_values))\.cpp:' |
  grep -Ev '^engine/plan/trace/(gpu_forms|tracer)\.cpp:'; then
  echo 'put what the code asks about an operator into OperatorFacts (engine/sharding/call/call_plan.h)'
  exit 1
fi
