-- Random programs on every layout equal their runs on plain tensors. For more of them:
--   redco-lua programs_spec.lua --seed=1000 --count=20000 --layouts="2x1 2x2"
-- A failure prints a small program.
local program = require "program"
local redco = require "redco"
local testing = require "testing"

local options = redco.options { seed = 1, count = testing.is_full and 60 or 40, most_failures = 20,
  layouts = "2x1 1x2 1x2-sp 2x2 2x2-sp 2x1-zero3 2x2-zero3 4x1-zero3-group2 1x1-context2 "
    .. "1x2-context2 2x1-context2-zero3 1x1-experts2 1x2-experts2 2x1-experts2-zero3 1x1-stages2 "
    .. "1x2-stages2 1x1-stages2-chunks2" }
local script = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster/programs.lua"
local log = program.folder .. "/seed"

--- Runs programs.lua in a new group of processes.
local function run(layout, words)
  local dp, mp = layout:match "^(%d+)x(%d+)"
  local n_context = layout:match "context(%d)" or 1
  local n_experts = layout:match "experts(%d)" or 1
  local n_stages, n_chunks = layout:match "stages(%d)" or 1, layout:match "chunks(%d)" or 1
  local command = "REDCO_CHECK_SPMD=1 \"$REDCO_LUA\" --nproc %d '%s' --n_model_shards=%d "
    .. "--n_context_shards=%d --n_expert_shards=%d --n_pipeline_stages=%d --n_chunks_per_stage=%d "
    .. "--zero=%d --zero_group=%d --sequence_parallel=%s %s </dev/null"
  return program.shell(command:format(dp * mp * n_context * n_experts * n_stages, script, mp,
    n_context, n_experts, n_stages, n_chunks, layout:match "zero(%d)" or 0,
    layout:match "group(%d)" or 0, layout:find "-sp" and "true" or "false", words))
end

--- The reports of process 0.
local function reports(out)
  local list, current = {}, nil
  for line in out:gmatch "[^\n]+" do
    local text = line:match "^%[0%] (.*)$" or not line:find "^%[%d" and line
    if text and text:find "^%-%- [%w ]+ on [%dx]+[%w-]*: " then current = {} end
    if current and text then
      if text == "-- end" then
        list[#list + 1], current = table.concat(current, "\n"), nil
      else
        current[#current + 1] = text
      end
    end
  end
  return list
end

--- The program that ran last.
local function logged() return program.read(log):match "^(.-)\n%-%- end" or "no program" end

--- A failure that ended its processes: new ones find the line at which it begins.
local function closer(layout, seed, out)
  local list = reports(out)
  local text = list[#list] or out
  if not seed then return text end
  local code, again, err = run(layout, ("--timeout=5 --prefixes --seed=%d --count=1 --log='%s'")
    :format(seed, log))
  if code == 0 then return text
    .. "\n-- Alone it does not fail: it needs the programs before it." end
  return reports(again)[1] or logged() .. "\n" .. again .. err
end

for layout in options.layouts:gmatch "%S+" do
  testing.test("programs on " .. layout, function()
    local failures, seed, last = {}, options.seed, options.seed + options.count - 1
    local found = 1
    while seed <= last and #failures < options.most_failures do
      os.remove(log)
      local code, out, err = run(layout, ("--seed=%d --count=%d --log='%s' --found=%d"):format(seed,
        last - seed + 1,
        log, found))
      local summary = out:match "(%d+x[^\n]* programs from seed[^\n]*)"
      if summary then print("  " .. summary) end
      for _, text in ipairs(reports(out)) do
        if not text:find "^[^\n]*: apart\n" then failures[#failures + 1] = text end
      end
      if code == 0 or code == 1 and summary then break end
      -- The rest with new processes.
      local name = logged():match "^%-%- ([^\n]*)" or ""
      local at = tonumber(name:match "seed (%d+)")
      failures[#failures + 1] = ("%s ended with code %d\n%s"):format(name, code,
        closer(layout, at, out .. err))
      seed, found = at and at + 1 or seed, at and 0
        or (tonumber(name:match "%d+") or found - 1) + 1
    end
    if #failures > 0 then error(("%d programs failed\n%s"):format(#failures,
      table.concat(failures, "\n\n")), 0) end
  end)
end

program.remove_folder()
testing.finish()
