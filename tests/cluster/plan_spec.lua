-- What `redco-lua plan` says that a step sends is what the step sends on real processes.
local data = require "redco.data"
local program = require "program"
local testing = require "testing"
local traffic = require "traffic"

local test, expect_equal = testing.test, testing.expect_equal
local script = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/plan.lua"

local function options_of(case)
  local words = {}
  for name, value in pairs(case) do
    if type(name) == "string" and name ~= "n" then
      words[#words + 1] = ("--%s=%s"):format(name, tostring(value))
    end
  end
  table.sort(words)
  return table.concat(words, " ")
end

local function checked(command)
  local code, out, err = program.shell(command .. " </dev/null")
  if code ~= 0 then error(("%s: exit code %d: %s%s"):format(command, code, out, err), 0) end
  return out
end

-- Returns what the plan says of a step, and of which process.
local function planned(case)
  local command = "\"$REDCO_LUA\" plan --servers '1x A100-80G:%d' --timeout 0 --json plan.json "
    .. "'%s' %s --planned=true"
  checked(command:format(case.n, script, options_of(case)))
  local plan = data.json(program.folder .. "/plan.json")
  for _, layout in ipairs(plan.layouts) do
    if layout.is_asked then
      local lines = {}
      local groups = { "dp", "ep", "cp", "mp", "dp_replicate", "pp", "world" }
      for group in pairs(layout.collectives) do
        if group:find ">" then groups[#groups + 1] = group end
      end
      for _, group in ipairs(groups) do
        for _, kind in ipairs(traffic.kinds) do
          local found = (layout.collectives[group] or {})[kind]
          if found and found.bytes > 0 then
            lines[#lines + 1] = ("%s.%s %d %d"):format(group, kind, found.count, found.bytes)
          end
        end
      end
      if layout.n_pipeline_stages > 1 then
        for _, kind in ipairs { "parameters", "gradients", "states" } do
          if kind ~= "gradients" or layout.n_chunks_per_stage == 1 then
            lines[#lines + 1] = ("%s %d"):format(kind, layout.memory[kind])
          end
        end
      end
      return table.concat(lines, "; "), layout.stage * case.n / layout.n_pipeline_stages
    end
  end
end

local function compare(case)
  local command = "\"$REDCO_LUA\" --nproc %d '%s' %s"
  local out = checked(command:format(case.n, script, options_of(case)))
  local expected, process = planned(case)
  local n = 0
  for line in out:gmatch(("%%[%d%%] ([^\n]+)"):format(process)) do
    n = n + 1
    expect_equal(line, expected)
  end
  expect_equal(n, 2)
end

local cases = {
  { n = 2, model = "mlp", n_model_shards = 2 },
  -- Activations that are large enough for sums by parts.
  { n = 4, model = "mlp", n_model_shards = 4, batch = 1100, compute_dtype = "bfloat16" },
  { n = 2, model = "llama", zero = 3, accumulate = 2, recompute = "blocks" },
  { n = 2, model = "llama", zero = 3, accumulate = 2, recompute = "selective" },
  { n = 2, model = "t5", n_model_shards = 2, sequence_parallel = true },
  { n = 2, model = "lora", n_model_shards = 2 },
  { n = 2, model = "gpt2", n_context_shards = 2, zero = 3, recompute = "blocks" },
  { n = 4, model = "gpt2", n_context_shards = 2, n_model_shards = 2 },
  -- All tokens are equal, and choose an expert on each process: as many as a plan assumes.
  { n = 4, model = "mixtral", n_expert_shards = 2, zero = 3 },
  { n = 2, model = "llama", n_pipeline_stages = 2, accumulate = 5 },
  { n = 4, model = "gpt2", n_pipeline_stages = 2, n_model_shards = 2 },
  { n = 4, model = "gpt2", n_pipeline_stages = 2, zero = 3, accumulate = 2, recompute = "blocks" },
  { n = 2, model = "t5", n_pipeline_stages = 2, n_chunks_per_stage = 2, accumulate = 7 },
  { n = 4, model = "t5", n_pipeline_stages = 2, n_chunks_per_stage = 2, accumulate = 3, zero = 1 },
}
if os.getenv "REDCO_TEST_FULL" == "1" then
  cases = {}
  for _, model in ipairs { "mlp", "llama", "gpt2", "t5", "conv", "lora" } do
    for _, mesh in ipairs { { 2, 1 }, { 2, 2 }, { 4, 2 }, { 4, 1 }, { 4, 4 } } do
      local n, shards = unpack(mesh)
      for zero = 0, n > shards and 3 or 0 do
        for accumulate = 1, 2 do
          for _, dtype in ipairs { "float32", "bfloat16" } do
            for _, is_parallel in ipairs(shards > 1 and { false, true } or { false }) do
              cases[#cases + 1] = {
                n = n, n_model_shards = shards, model = model, zero = zero, accumulate = accumulate,
                compute_dtype = dtype, sequence_parallel = is_parallel,
              }
            end
          end
        end
      end
    end
    for zero = 1, 3 do
      cases[#cases + 1] = { n = 4, model = model, zero = zero, zero_group = 2 }
      cases[#cases + 1] = { n = 2, model = model, zero = zero, recompute = "blocks" }
      cases[#cases + 1] = { n = 4, model = model, zero = zero, n_context_shards = 2 }
      for accumulate = 1, 3 do
        if model ~= "mlp" and model ~= "conv" then
          cases[#cases + 1] = { n = 4, model = model, zero = zero, n_pipeline_stages = 2,
            accumulate = accumulate }
        end
      end
    end
  end
end

for _, case in ipairs(cases) do
  test(("%d processes, %s"):format(case.n, options_of(case)), function() compare(case) end)
end

program.remove_folder()
testing.finish()
