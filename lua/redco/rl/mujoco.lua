--- Environments of MuJoCo, through its C library.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "rl.mujoco"

-- The bits of mjtState (mjdata.h, mjtype.h) by version: the state with which a simulation continues
-- as if it had not been interrupted (mjSTATE_INTEGRATION), and the controls. Time, positions and
-- velocities are the first three bits in all versions.
local versions = {
  { first = 3017000, last = 3017999, integration = 0x3FFF, controls = 0x40 },
  { first = 330, last = 337, integration = 0x1FFF, controls = 0x20 },
}
local positions_bit, velocities_bit = 2, 4

local is_declared = false

-- Returns LuaJIT's FFI, the library, and its bits.
local function open(path)
  local has_ffi, ffi = pcall(require, "ffi")
  if not has_ffi then fail("%s: it needs LuaJIT's ffi, which restricted engines lack", where) end
  if not is_declared then
    ffi.cdef [[
      typedef struct mjModel_ mjModel;
      typedef struct mjData_ mjData;
      int mj_version(void);
      mjModel *mj_loadXML(const char *path, const void *vfs, char *error, int size);
      void mj_deleteModel(mjModel *model);
      mjData *mj_makeData(const mjModel *model);
      void mj_deleteData(mjData *data);
      void mj_step(const mjModel *model, mjData *data);
      int mj_stateSize(const mjModel *model, int bits);
      void mj_getState(const mjModel *model, const mjData *data, double *state, int bits);
      void mj_setState(const mjModel *model, mjData *data, const double *state, int bits);
    ]]
    is_declared = true
  end
  local is_there, library = pcall(ffi.load, path)
  if not is_there then
    fail("%s: cannot load MuJoCo: %s; give the path of its library as `library`: Python's package "
      .. "mujoco has it", where, library)
  end
  local version = library.mj_version()
  for _, known in ipairs(versions) do
    if version >= known.first and version <= known.last then return ffi, library, known end
  end
  fail("%s: %s is version %d of MuJoCo, expected 3.3 or 3.17", where, path, version)
end

-- Numbers of the standard normal distribution, [n_envs, n].
local function normal(uniform, n)
  local radius = (-2 * (1 - uniform(n)):log()):sqrt()
  return radius * (2 * math.pi * uniform(n)):cos()
end

local options = arguments(where, { library = "libmujoco.so", frame_skip = 1,
  max_episode_steps = 1000, reset_noise = 0.1, action_limit = 1 },
  { "model", "name", "step", "observe" })

return registry.define("redco.rl.mujoco", [[
mujoco{model: string, step: function, observe: function = nil, name = nil, library = "libmujoco.so", frame_skip = 1, max_episode_steps = 1000, reset_noise = 0.1, action_limit = 1} -> table
Returns a robot or another mechanism of MuJoCo as an environment, for `redco.rl.environment`. `model`
is its XML file. The library of MuJoCo is not part of redco-lua: the package mujoco of Python has it,
and gymnasium's the XML files of its robots. Supported are the versions 3.3 and 3.17.

Actions are continuous, from -action_limit to action_limit. An action lasts for frame_skip steps of
the simulation. step(before, after, actions, seconds) returns the rewards [n_envs] and, if episodes
can end, where they do. `before` and `after` are tables {positions, velocities} of tensors float64
[n_envs, size], and `seconds` is what an action lasts. observe(state) returns the observations; without
it they are the positions and velocities. Episodes start with the model's positions, to which
uniform noise up to reset_noise is added, and normal noise of that deviation to its velocities.]],
function(given)
  local o = options(given)
  for _, name in ipairs { "model", "step" } do
    local expected = name == "model" and "string" or "function"
    if type(o[name]) ~= expected then
      fail("%s: %s: expected a %s, got %s", where, name, expected, native.describe(o[name]))
    end
  end
  local ffi, library, bits = open(o.library)
  local message = ffi.new "char[1000]"
  local model = library.mj_loadXML(o.model, nil, message, 1000)
  if model == nil then fail("%s: %s: %s", where, o.model, ffi.string(message)) end
  model = ffi.gc(model, library.mj_deleteModel)
  local data = ffi.gc(library.mj_makeData(model), library.mj_deleteData)
  local function size_of(mask) return library.mj_stateSize(model, mask) end
  local n_positions, n_velocities = size_of(positions_bit), size_of(velocities_bit)
  local size, n_actions = size_of(bits.integration), size_of(bits.controls)

  local function pointer(tensor) return ffi.cast("double *", tensor:data_ptr()) end
  local function current()
    local state = torch.empty({ size }, { dtype = "float64" })
    library.mj_getState(model, data, pointer(state), bits.integration)
    return state
  end
  local first = current()
  library.mj_step(model, data)
  local seconds = (current()[0] - first[0]):item() * o.frame_skip

  local function parts(states)
    return { positions = states:narrow(1, 1, n_positions),
      velocities = states:narrow(1, 1 + n_positions, n_velocities) }
  end

  local facts = { name = o.name or o.model:match "([^/]*)%.xml$" or o.model, action_low = {},
    action_high = {}, max_episode_steps = o.max_episode_steps }
  for i = 1, n_actions do
    facts.action_low[i], facts.action_high[i] = -o.action_limit, o.action_limit
  end

  function facts.start(uniform)
    local positions = (2 * uniform(n_positions) - 1) * o.reset_noise
    local velocities = normal(uniform, n_velocities) * o.reset_noise
    local states = first:expand { positions:size(0), size }:clone()
    states:narrow(1, 1, n_positions):add_(positions)
    states:narrow(1, 1 + n_positions, n_velocities):add_(velocities)
    return states
  end

  function facts.step(states, actions)
    local from = states:contiguous()
    local controls = actions:nan_to_num():clamp(-o.action_limit, o.action_limit)
    local after = torch.empty_like(from)
    local source, target, control = pointer(from), pointer(after), pointer(controls)
    for i = 0, states:size(0) - 1 do
      library.mj_setState(model, data, source + i * size, bits.integration)
      library.mj_setState(model, data, control + i * n_actions, bits.controls)
      for _ = 1, o.frame_skip do library.mj_step(model, data) end
      library.mj_getState(model, data, target + i * size, bits.integration)
    end
    -- The environment names actions that are not finite.
    after = after + 0 * actions:sum(1, true)
    local rewards, terminated = o.step(parts(states), parts(after), actions, seconds)
    return after, rewards, terminated or torch.zeros({ states:size(0) }, { dtype = "bool" })
  end

  function facts.observe(states)
    local now = parts(states)
    return o.observe and o.observe(now) or torch.cat({ now.positions, now.velocities }, 1)
  end

  facts.observation_size = facts.observe(first:unsqueeze(0)):size(1)
  return facts
end)
