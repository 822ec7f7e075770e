-- Random programs on sharded tensors, against the same on plain ones. Run it in several processes:
--   redco-lua --nproc 2 programs.lua --n_model_shards=2 --seed=1 --count=1000
-- A failure prints the seed and a small program that fails alike. Exit code 1: programs failed; 3:
-- the processes went apart, so that no other could be run. More options:
--   --found=1           runs those of found.lua first, from number 1 on
--   --lines=FILE        runs the program in a file
--   --log=FILE          keeps the program that runs in a file, for crashes
--   --prefixes          runs the first line of a program, the first two, ... until it fails
--   --without="a b"     draws no lines with these words
local folder = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
package.path = folder .. "?.lua;" .. package.path

local native = require "redco.native"
local redco = require "redco"
local Compare = require "programs.compare"
local draw = require "programs.draw"
local found = require "programs.found"
local minimize = require "programs.minimize"
local training = require "programs.training"

native.keep_results_of(0)  -- blocks of programs are small

local options = redco.options { n_model_shards = 1, n_context_shards = 1,
  n_expert_shards = 1, n_pipeline_stages = 1, n_chunks_per_stage = 1, zero = 0,
  zero_group = 0, seed = 1, sequence_parallel = false, count = 100, log = "", lines = "",
  found = 0, minimize = true, prefixes = false, print = false, timeout = 20, without = "" }
local function new_deployer()
  return redco.Deployer { seed = 1, n_model_shards = options.n_model_shards,
    n_context_shards = options.n_context_shards, n_expert_shards = options.n_expert_shards,
    n_pipeline_stages = options.n_pipeline_stages, n_chunks_per_stage = options.n_chunks_per_stage,
    sequence_parallel = options.sequence_parallel, zero = options.zero,
    zero_group = options.zero_group > 0 and options.zero_group or nil,
    zero_min_size = 1, verbose = false, collective_timeout = options.timeout }
end
local deployer = new_deployer()
local layout = ("%dx%d"):format(deployer.mesh.dp * deployer.mesh.dp_replicate, deployer.mesh.mp)
  .. (options.n_context_shards > 1 and "-context" .. options.n_context_shards or "")
  .. (options.n_expert_shards > 1 and "-experts" .. options.n_expert_shards or "")
  .. (options.n_pipeline_stages > 1 and "-stages" .. options.n_pipeline_stages or "")
  .. (options.n_chunks_per_stage > 1 and "-chunks" .. options.n_chunks_per_stage or "")
  .. (options.sequence_parallel and "-sp" or "")
  .. (options.zero > 0 and "-zero" .. options.zero or "")
  .. (options.zero_group > 0 and "-group" .. options.zero_group or "")
local is_first = deployer.process_id == 0
local log = is_first and options.log ~= "" and assert(io.open(options.log, "w"))
-- After an error, stages of several chunks may have sent what nobody receives.
local compare = Compare.new(deployer, options.n_chunks_per_stage > 1 and new_deployer)
training.n_chunks = options.n_chunks_per_stage
local n_failed = 0

--- Writes what runs now into the log: a crash leaves it there.
local function note(name, program)
  if not log then return end
  log:seek "set"
  log:write("-- ", name, "\n", table.concat(program, "\n"), "\n-- end\n")
  log:flush()
end

local function indented(text) return "--   " .. tostring(text):gsub("\n%s*$", ""):gsub("\n",
  "\n--   ") .. "\n" end

local function report(name, failure, lines)
  local text = { ("-- %s on %s: %s%s\n"):format(name, layout, failure.kind, failure.name and " of "
    .. failure.name or "") }
  if failure.text then text[#text + 1] = indented("at " .. failure.text) end
  text[#text + 1] = indented(failure.message)
  if failure.details then text[#text + 1] = indented(failure.details) end
  if failure.actual and failure.actual:numel() <= 24 then
    text[#text + 1] = indented("expected " .. tostring(failure.expected:detach()))
    text[#text + 1] = indented("got      " .. tostring(failure.actual))
  end
  io.write(table.concat(text), table.concat(lines, "\n"), "\n-- end\n")
  io.flush()
end

local function verdict_of(program, method)
  local ok, failure, lines = pcall(method, compare, program)
  if ok then return failure, lines end
  return { kind = "apart", message = failure, fatal = true }, program
end

local function run(name, program)
  if options.print and is_first then
    io.write("-- ", name, "\n", table.concat(program, "\n"), "\n")
    io.flush()
  end
  local failure, lines
  for n = options.prefixes and 1 or #program, #program do
    local prefix = { unpack(program, 1, n) }
    note(name, prefix)
    failure, lines = verdict_of(prefix, compare.run)
    if failure then break end
  end
  if not failure then return end
  n_failed = n_failed + 1
  if failure.fatal then
    if options.prefixes then lines = minimize.slice(lines) end
    report(name, failure, lines)
    os.exit(3)
  end
  if options.minimize then
    lines = minimize.lines(lines, function(candidate)
      local verdict = verdict_of(candidate, compare.run_once)
      if verdict and verdict.fatal then
        report(name, verdict, candidate)
        os.exit(3)
      end
      return verdict and verdict.kind == failure.kind
    end)
    local again = compare:run(lines)
    failure = again or failure
    if not again then failure.details = "Run again it is right: it fails while plans are new." end
  end
  if is_first then report(name, failure, lines) end
end

local started, n_run = os.clock(), 0
if options.lines ~= "" then
  local lines = {}
  for line in io.lines(options.lines) do lines[#lines + 1] = line end
  run("program", lines)
  options.count = 0
end
for i = options.found > 0 and options.found or #found + 1, #found do
  local lines = {}
  for line in found[i]:gmatch "[^\n]+" do lines[#lines + 1] = line end
  run("found program " .. i, lines)
end
for seed = options.seed, options.seed + options.count - 1 do
  local is_training = options.n_pipeline_stages > 1 or seed % (options.zero > 0 and 2 or 10) == 0
  note("seed " .. seed, { "-- It failed while it was drawn, on plain tensors." })
  run("seed " .. seed, draw(seed, is_training, options.without).steps)
  n_run = n_run + 1
end
if is_first then
  print(("%s: %d programs from seed %d, %d failed; %d refused lines, %d near misses, %.1f s")
    :format(layout, n_run, options.seed, n_failed, compare.n_refused, compare.n_suspected,
    os.clock() - started))
end
os.exit(n_failed > 0 and 1 or 0)
