-- Processes that die, in each phase of a training: the run starts again, and ends as if none had.
local program = require "program"
local runs = require "runs"
local testing = require "testing"

local read = program.read

-- The phases are tried side by side: most of the time they wait.
local phases = { "collate", "forward", "backward", "update", "evaluation" }
local some = testing.is_full and phases or { "collate", "backward", "evaluation" }

-- A line of the launcher with the time when it came out.
local stamped = 'while read -r line; do echo "$(date +%s.%N) $line"; done'

for name, case in pairs {
  killed = { signal = 9, n = 4, phases = phases, cause = "was ended by signal 9 %(Killed%)" },
  stopped = { signal = 19, n = testing.is_full and 4 or 2, phases = some,
    cause = "no sign of life for 5 s" },
} do
  local lines, n = {}, case.n
  for _, phase in ipairs(case.phases) do
    local folder = name .. "_" .. phase
    lines[#lines + 1] = ([[
mkdir %s
{ "$REDCO_LUA" --nproc %d --max-restarts 2 %s --phase=%s --signal=%d 2>&1
  echo $? >%s/code; } | %s >%s/out &]])
      :format(folder, n, runs.words(n, folder, "death.lua"), phase, case.signal, folder, stamped,
        folder)
  end
  program.shell(table.concat(lines, "\n") .. "\nwait")

  for _, phase in ipairs(case.phases) do
    testing.test(("one of %d %s in %s"):format(n, name, phase), function()
      local folder = ("%s_%s"):format(name, phase)
      local path = program.folder .. "/" .. folder
      local out = "\n" .. read(path .. "/out")
      if tonumber(read(path .. "/code")) ~= 0 then error(out) end
      local told = out:match(("\n([%%d.]+) redco%%-lua: process 1 of %d failed first: "):format(n)
        .. case.cause)
      program.expect_has(out, (" redco-lua: restart 1 of 2, with processes 0 to %d of %d on this "
        .. "host"):format(n - 1, n))
      assert(told and not out:find("restart 2", 1, true), out)
      local took = told - read(path .. "/notes"):match "\ndied ([%d.]+)\n"
      assert(took < 10, took .. " s until all had ended")
      runs.expect_as_alone(folder)
      -- The rate of an update is asked for twice.
      local step = tonumber(read(path .. "/notes"):match "\nstarted at (%d+) [%d.]+\n$")
      local expected = { update = 1, evaluation = 20 }
      testing.expect_equal(step, expected[phase] or 2)
      local _, left = program.shell("grep -ls -e [-]-workdir=" .. path .. " /proc/[0-9]*/cmdline")
      assert(left == "", "processes are left: " .. left)
    end)
  end
end

program.remove_folder()
testing.finish()
