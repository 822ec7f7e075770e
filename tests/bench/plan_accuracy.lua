-- What `redco-lua plan` predicts against what runs measure: the memory of the process with the
-- most, in the round with the most, and the median time of a step, of four models on 1, 2 and 4
-- processes in all layouts at one global batch. Prints the table that tests/bench/README.md shows
-- and, with times, how well the plan ranks the layouts of each model: Kendall's tau-b, and how much
-- longer than the fastest layout the one takes that is planned to be the fastest. Memory can be
-- measured on a busy machine, times cannot:
--     redco-lua tests/bench/plan_accuracy.lua                 # memory
--     redco-lua tests/bench/plan_accuracy.lua --times=true  # on a quiet machine; it calibrates
-- Rounds are interleaved: each has a calibration, if times are measured, and a run of all layouts
-- of a model. Planned times are medians, too.
-- REDCO_LUA may name the program.
local clock = require "clock"
local redco = require "redco"

local o = redco.options { models = "gpt2 llama t5 conv", processes = "1 2 4", times = false,
  rounds = 1, batch = 2, step = "", sequence_parallel = true, recompute = true }
local program = os.getenv "REDCO_LUA" or "redco-lua"
local folder = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local script = o.step ~= "" and o.step or folder .. "/plan_step.lua"
local MB = 1e6

local function run(command)
  local pipe = assert(io.popen(("LUA_PATH='%s/?.lua;;' OMP_NUM_THREADS=1 '%s' %s 2>&1"):format(
    folder, program, command)))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function layouts_of(model, n)
  local list = {}
  for mp = 1, n do
    for zero = 0, (n % mp == 0 and n / mp > 1) and 3 or 0 do
      if n % mp == 0 then list[#list + 1] = { n_model_shards = mp, zero = zero } end
    end
    if n % mp == 0 and mp > 1 and o.sequence_parallel and model ~= "conv" then
      list[#list + 1] = { n_model_shards = mp, zero = 0, sequence_parallel = true }
    end
  end
  if o.recompute and model ~= "conv" then
    list[#list + 1] = { n_model_shards = 1, zero = 0, recompute = "blocks" }
  end
  return list
end

local function options_of(model, layout)
  -- A group of model shards works on one batch.
  local words = { "--model=" .. model, "--batch=" .. o.batch * layout.n_model_shards,
    "--steps=" .. (model == "conv" and 60 or 5) }
  for name, value in pairs(layout) do
    words[#words + 1] = ("--%s=%s"):format(name, tostring(value))
  end
  table.sort(words)
  return table.concat(words, " ")
end

local function text_of(layout)
  local text = ("mp %d, zero %d"):format(layout.n_model_shards, layout.zero)
  if layout.sequence_parallel then text = text .. ", sequence" end
  if layout.recompute then text = text .. ", recompute" end
  return text
end

local planning = {}

local function planned(model, n, layout)
  local json, start = os.tmpname(), clock.now()
  local text = run(("plan --fit 2 --devices %d --timeout 0 --json '%s' '%s' %s"):format(n, json,
    script, options_of(model, layout)))
  planning[#planning + 1] = clock.now() - start
  local ok, plan = pcall(redco.data.json, json)
  os.remove(json)
  for _, each in ipairs(ok and plan.layouts or {}) do
    if each.is_asked then return each end
  end
  error(text, 0)
end

-- The bytes and the seconds of one run.
local function measured(model, n, layout)
  local text = run(("%s '%s' %s"):format(n > 1 and "--nproc " .. n or "", script,
    options_of(model, layout)))
  local bytes, time = text:match '"bytes": (%d+), "seconds": ([%d.]+)'
  if not bytes then error(text, 0) end
  return tonumber(bytes), tonumber(time)
end

-- Kendall's tau-b of two lists: 1 if they have one order, -1 if opposite ones.
local function kendall_tau(a, b)
  local sum, n_a, n_b = 0, 0, 0
  for i = 1, #a do
    for k = 1, i - 1 do
      local x, y = a[i] - a[k], b[i] - b[k]
      sum = sum + (x * y > 0 and 1 or x * y < 0 and -1 or 0)
      n_a, n_b = n_a + (x ~= 0 and 1 or 0), n_b + (y ~= 0 and 1 or 0)
    end
  end
  return sum / math.sqrt(n_a * n_b)
end

local function place_of_least(list)
  local place = 1
  for i = 2, #list do if list[i] < list[place] then place = i end end
  return place
end

print("| model | processes | layout | planned MB | measured MB | difference | planned s "
  .. "| measured s | difference |")
print "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
local n_rows, n_good, rankings = 0, 0, {}
for n in o.processes:gmatch "%d+" do
  for model in o.models:gmatch "%S+" do
    local layouts, plans, bytes, plan_times, times = layouts_of(model, tonumber(n)), {}, {}, {}, {}
    for i in ipairs(layouts) do bytes[i], plan_times[i], times[i] = {}, {}, {} end
    for round = 1, o.rounds do
      -- The speed of a machine that others use changes within minutes. One process has one thread
      -- here, as each of several has.
      if o.times then run(("--nproc %s plan --calibrate /dev/null"):format(n)) end
      for i, layout in ipairs(layouts) do
        plans[i] = planned(model, tonumber(n), layout)
        plan_times[i][round] = plans[i].seconds.total
        bytes[i][round], times[i][round] = measured(model, tonumber(n), layout)
      end
    end
    local planned_s, measured_s = {}, {}
    for i, layout in ipairs(layouts) do
      local pss, plan = math.max(unpack(bytes[i])), plans[i]
      planned_s[i], measured_s[i] = clock.median(plan_times[i]), clock.median(times[i])
      local off = plan.memory.total - pss
      n_rows = n_rows + 1
      if math.abs(off) <= math.max(0.05 * pss, 24 * MB) then n_good = n_good + 1 end
      print(("| %s | %s | %s | %.0f | %.0f | %+.1f %% | %s | %s | %s |"):format(model, n,
        text_of(layout), plan.memory.total / MB, pss / MB, 100 * off / pss,
        o.times and ("%.3f"):format(planned_s[i]) or "",
        o.times and ("%.3f"):format(measured_s[i]) or "",
        o.times and ("%+.1f %%"):format(100 * (planned_s[i] / measured_s[i] - 1)) or ""))
    end
    if o.times and #layouts > 2 then
      local chosen = measured_s[place_of_least(planned_s)]
      local best = measured_s[place_of_least(measured_s)]
      local text = "%s on %s processes: tau %.2f, the planned best takes %+.1f %%"
      rankings[#rankings + 1] =
        text:format(model, n, kendall_tau(planned_s, measured_s), 100 * (chosen / best - 1))
    end
    io.stdout:flush()
  end
end
for _, line in ipairs(rankings) do print(line) end
print(("%d of %d within 5 %% or 24 MB; planning took %.1f s, median of one plan"):format(n_good,
  n_rows, clock.median(planning)))
