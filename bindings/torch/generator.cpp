// Random generators: torch.Generator, torch.manual_seed, redco.Rng and redco.with_rng.

#include "torch.h"

#include "state/context.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/error.h>
#include <redco/random.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <string>

namespace redco::lua {

namespace {

// PyTorch's CPU generator.
int generator(lua_State* L) {
  push_generator(L, at::make_generator<at::CPUGeneratorImpl>(
                        uint64_t(check_integer(L, 1, "torch.Generator: seed"))));
  return 1;
}

int manual_seed(lua_State* L) {
  auto seed = uint64_t(check_integer(L, 1, "torch.manual_seed: seed"));
  if (at::Generator& own = context(L).rng; own.defined())
    own.set_current_seed(seed);
  else
    at::manual_seed(seed);
  return 0;
}

int rng(lua_State* L) {
  push_generator(L, make_rng(uint64_t(check_integer(L, 1, "redco.Rng: seed"))));
  return 1;
}

at::Generator& check_generator(lua_State* L, const char* method) {
  at::Generator* self = test_generator(L, 1);
  require(self != nullptr, method, ": expected a Generator, got ", described(L, 1));
  return *self;
}

CounterGenerator& check_rng(lua_State* L, const char* method) {
  CounterGenerator* rng = counter_generator(check_generator(L, method));
  require(rng != nullptr, method,
          ": this is a torch.Generator; it needs one of redco: that of loss_fn or pred_fn, of "
          "deployer:gen_rng() or of redco.Rng(seed)");
  return *rng;
}

void push_unsigned(lua_State* L, uint64_t value) { push_integer(L, int64_t(value)); }

int seed(lua_State* L) {
  push_unsigned(L, check_generator(L, "Generator:seed").current_seed());
  return 1;
}

int split(lua_State* L) {
  check_rng(L, "Generator:split");
  int64_t n = check_integer(L, 2, "Generator:split: n");
  require(n > 0 && n <= 1 << 20, "Generator:split: n = ", n, " must be from 1 to 1048576");
  lua_createtable(L, int(n), 0);
  int i = 0;
  for (at::Generator& part : redco::split(*test_generator(L, 1), n)) {
    push_generator(L, std::move(part));
    lua_rawseti(L, -2, ++i);
  }
  return 1;
}

int fold_in(lua_State* L) {
  check_rng(L, "Generator:fold_in");
  auto number = uint64_t(check_integer(L, 2, "Generator:fold_in: number"));
  push_generator(L, redco::fold_in(*test_generator(L, 1), number));
  return 1;
}

int state(lua_State* L) {
  const CounterGenerator& rng = check_rng(L, "Generator:state");
  push_unsigned(L, rng.key());
  push_unsigned(L, rng.count());
  return 2;
}

int set_state(lua_State* L) {
  CounterGenerator& rng = check_rng(L, "Generator:set_state");
  auto key = uint64_t(check_integer(L, 2, "Generator:set_state: seed"));
  auto count = uint64_t(check_integer(L, 3, "Generator:set_state: draws"));
  rng.set_current_seed(key);
  rng.set_count(count);
  return 0;
}

int with_rng(lua_State* L) {
  check_rng(L, "redco.with_rng");
  require(lua_isfunction(L, 2), "redco.with_rng: expected a function to call, got ",
          described(L, 2));
  WithRng scope(*test_generator(L, 1));
  call(L, lua_gettop(L) - 2, LUA_MULTRET);
  return lua_gettop(L) - 1;
}

int generator_tostring(lua_State* L) {
  const at::Generator& self = check_generator(L, "tostring");
  std::string text = "Generator(seed = " + std::to_string(int64_t(self.current_seed()));
  if (const CounterGenerator* rng = counter_generator(self))
    text += ", draws = " + std::to_string(rng->count());
  lua_pushstring(L, (text + ")").c_str());
  return 1;
}

int collect_generator(lua_State* L) {
  if (at::Generator* self = test_generator(L, 1)) *self = at::Generator();
  return 0;
}

}  // namespace

void make_generator_type(lua_State* L) {
  lua_newtable(L);
  lua_pushcfunction(L, generator_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushcfunction(L, collect_generator);
  lua_setfield(L, -2, "__gc");
  lua_pushliteral(L, "Generator");
  lua_setfield(L, -2, "__name");
  lua_newtable(L);
  register_value(L, "Generator",
                 "Generator {}\n"
                 "A source of random numbers: the `generator` argument of operators, and the `rng` "
                 "argument of loss_fn. `split`, `fold_in`, `state` and `set_state` need one of "
                 "redco: that of loss_fn and pred_fn, or one made by `redco.Rng` or "
                 "`Deployer:gen_rng`.");
  register_functions(
      L, "Generator:",
      {{"seed", seed,
        "seed(self) -> integer\n"
        "Returns the seed, which determines a new generator completely."},
       {"split", split,
        "split(self, n) -> list of Generators\n"
        "Returns n new generators, independent of each other and of this one. They depend only "
        "on its seed, not on earlier draws."},
       {"fold_in", fold_in,
        "fold_in(self, number) -> Generator\n"
        "Returns a new generator for a number, for example that of a layer. It depends only on "
        "the seed and the number."},
       {"state", state,
        "state(self) -> integer, integer\n"
        "Returns the seed and the number of draws so far, the complete state."},
       {"set_state", set_state,
        "set_state(self, seed, draws)\n"
        "Restores a state that `state` returned."}});
  lua_setfield(L, -2, "__index");
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_generator_metatable);
}

void add_generators(lua_State* L) {
  register_functions(
      L, "torch.",
      {{"Generator", generator,
        "Generator(seed) -> Generator\n"
        "PyTorch's CPU generator, for the `generator` argument of operators. Its numbers depend "
        "on the order in which elements are drawn; those of `redco.Rng` do not. Tensors on a GPU "
        "get the same numbers: these are drawn on the CPU and copied."},
       {"manual_seed", manual_seed,
        "manual_seed(seed)\n"
        "Seeds the default generator of every device."}});
}

void add_rng(lua_State* L) {
  register_functions(
      L, "redco.",
      {{"Rng", rng,
        "Rng(seed) -> Generator\n"
        "Returns a source of random numbers for the `generator` argument of operators. Its n-th "
        "draw depends only on the seed, n and the position of each element in its tensor: the "
        "numbers are the same on a GPU, and however the tensor is sharded."},
       {"with_rng", with_rng,
        "with_rng(rng, f, ...) -> what f returns\n"
        "Calls f(...) with `rng` as the default source of random numbers: operators that are "
        "called without a generator, such as dropout, draw from it. A Trainer calls loss_fn, "
        "and a Predictor pred_fn, this way."}});
}

}  // namespace redco::lua
