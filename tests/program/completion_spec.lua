-- redco-lua --completion: what bash, zsh and fish complete, made from the table of --help; and the
-- man page, made of its text.
local program = require "program"
local testing = require "testing"

local test, expect_equal, expect_has = testing.test, testing.expect_equal, program.expect_has
local run, shell = program.run, program.shell

for _, name in ipairs { "script.lua", "other file.lua", "notes.txt", "folder/inner.lua" } do
  if name:find "/" then os.execute(("mkdir -p '%s/folder'"):format(program.folder)) end
  program.write(name, "")
end

local scripts = {}
for _, name in ipairs { "bash", "zsh", "fish" } do
  local code, out, err = run { "--completion", name }
  assert(code == 0 and err == "", err)
  scripts[name] = out
  program.write("completion." .. name, out)
end

--- Calls see(flag) for each flag of the help text, of two that differ by _ for - the one with -.
local function each_flag(args, see)
  local code, out = run(args)
  expect_equal(code, 0)
  for names in out:gmatch "\n  (%-[^ ]+)" do
    for flag in names:gmatch "[^,]+" do
      if not flag:find "_" then see(flag) end
    end
  end
end

local _, man_page = shell '"$REDCO_SOURCE/program/man_page.sh" "$REDCO_LUA" 1.2.3'

test("each flag of --help is in each script and in the man page", function()
  local n_flags = 0
  for _, args in ipairs { { "--help" }, { "plot", "--help" }, { "check", "--help" },
    { "chat", "--help" }, { "evaluate", "--help" } } do
    each_flag(args, function(flag)
      n_flags = n_flags + 1
      local letter, word = flag:match "^%-(%w)$", flag:match "^%-%-(.+)$"
      local pattern = flag:gsub("%-", "%%-")
      assert(scripts.bash:find("[ ']" .. pattern .. "[ ']"), flag)
      assert(scripts.zsh:find(pattern .. "=?%["), flag)
      expect_has(man_page, (flag:gsub("%-", "\\-")))
      expect_has(scripts.fish, letter and " -s " .. letter or " -l " .. word)
    end)
  end
  assert(n_flags > 15, n_flags)
end)

test("the man page has the other parts of the help text, and troff finds nothing wrong", function()
  expect_has(man_page, "1.2.3", ".SH SYNOPSIS", ".SH EXIT STATUS", ".B plot\n", ".SH COMMAND PLOT",
    "\\-\\-n\\-processes,\\-\\-n_processes N\n")
  if os.execute "command -v groff >/dev/null 2>&1" ~= 0 then return print "  (no groff here)" end
  program.write("page.1", man_page)
  local status, _, err = shell "groff -man -ww -Tutf8 -z page.1"
  expect_equal(status, 0)
  expect_equal(err, "")
end)

test("another shell is wrong usage, and the known ones are told", function()
  local code, _, err = run { "--completion", "tcsh" }
  expect_equal(code, 2)
  expect_has(err, "tcsh", "bash", "fish", "zsh")
end)

-- The words of a line, the last of which is being typed, and what it may become.
local lines = {
  { { "--np" }, "--nproc" },
  { { "--max" }, "--max-restarts" },
  { { "--completion", "" }, "bash fish zsh" },
  { { "--completion", "z" }, "zsh" },
  { { "scr" }, "script.lua" },
  { { "oth" }, "other file.lua" },
  { { "fol" }, "folder" },
  { { "folder/" }, "folder/inner.lua" },
  { { "pl" }, "plan plot" },
  { { "plo" }, "plot" },
  { { "--nproc", "" }, "" },
  { { "--nproc", "2", "scr" }, "script.lua" },
  { { "-e", "plot", "scr" }, "script.lua" },
  { { "-i", "--no-strict", "--rep" }, "--report-sharding" },
  { { "plot", "" }, "folder" },
  { { "cha" }, "chat" },
  { { "che" }, "check" },
  { { "check", "--ex" }, "--examples" },
  { { "check", "--json", "scr" }, "script.lua" },
  { { "plan", "scr" }, "script.lua" },
  { { "chat", "no" }, "notes.txt" },
  { { "evaluate", "--out" }, "--output" },
  { { "generate", "--down" }, "--download" },
  { { "generate", "fol" }, "folder" },
  { { "generate", "--dtype", "bf" }, "bfloat16" },
  { { "plot", "--o" }, "--out" },
  { { "plot", "--out", "no" }, "notes.txt" },
  { { "plot", "--nproc" }, "" },
  { { "script.lua", "--np" }, "" },
  { { "script.lua", "no" }, "notes.txt" },
  { { "script.lua", "plot", "no" }, "notes.txt" },
  { { "-", "no" }, "notes.txt" },
}

--- Fails unless the shell, by the text that command(words) makes of each line, prints what is
--- expected of it.
local function expect_completes(runs, all, command)
  local commands = {}
  for i, line in ipairs(all) do commands[i] = command(line[1]) .. "\necho ==\n" end
  program.write("lines", table.concat(commands))
  local code, out, err = shell(runs .. " lines")
  assert(code == 0 and err == "", err)
  local i = 0
  for block in out:gmatch "(.-)==\n" do
    i = i + 1
    local words = {}
    -- fish adds a description after a tab, slashes to folders, and escapes blanks.
    for word in block:gsub("\\ ", " "):gmatch "([^\t\n]+)[^\n]*\n" do
      words[#words + 1] = word:gsub("/$", "")
    end
    table.sort(words)
    local actual = table.concat(words, " ")
    assert(actual == all[i][2], ("%s: expected %q, got %q"):format(table.concat(all[i][1], " "),
      all[i][2], actual))
  end
  expect_equal(i, #all)
end

test("bash completes flags, their values, commands and Lua files", function()
  local all = {
    { { "no" }, "" },  -- no script; fish would offer notes.txt last
    { { "--completion", "=", "z" }, "zsh" },
    { { "--completion", "=" }, "bash fish zsh" },
    { { "--nproc", "=", "2", "scr" }, "script.lua" },
  }
  for _, line in ipairs(lines) do all[#all + 1] = line end
  expect_completes("bash --norc", all, function(words)
    local quoted = {}
    for i, word in ipairs(words) do quoted[i] = ("%q"):format(word) end
    return ([[
. ./completion.bash; COMP_WORDS=(redco-lua %s) COMP_CWORD=%d; _redco_lua
((${#COMPREPLY[@]})) && printf "%%s\n" "${COMPREPLY[@]}"]]):format(table.concat(quoted, " "),
      #words)
  end)
end)

local function has(command)
  return os.execute("command -v " .. command .. " >/dev/null 2>&1") == 0
end

test("fish completes the same", function()
  if not has "fish" then return print "  (no fish here)" end
  expect_completes("HOME=$PWD fish --no-config", lines, function(words)
    return ("source ./completion.fish; complete -C 'redco-lua %s'"):format(table.concat(words, " "))
  end)
end)

test("zsh reads its script", function()
  if not has "zsh" then return print "  (no zsh here)" end
  local code, _, err = shell "zsh -f -c 'compdef() { :; }; . ./completion.zsh'"
  assert(code == 0 and err == "", err)
end)

program.remove_folder()
testing.finish()
