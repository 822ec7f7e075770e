--- redco.check: adds checks to those of `redco-lua check`.
local added = require "redco.check.added"
local check_choice = require "redco.check_choice"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local strict = require "redco.strict"

local check = {}

local function check_text(row, name)
  if type(row[name]) ~= "string" or row[name] == "" then
    fail("check.add: %s: expected a text, got %s", name, native.describe(row[name]))
  end
end

registry.define("CheckSubject", [[
CheckSubject {examples: table, evaluation: table, batches: list of tables, rows: list of tables,
  labelled: list of tables, tokenizer: Tokenizer, model: Model, params: table,
  trained: list of strings, loss: number, gradients: table}
What a script would train with, as the checks of `redco-lua check` see it. A field is nil if the script
has no such thing.
  examples, evaluation: the training and evaluation examples, {count, at}: at(i) is example i
  batches: what collate_fn made of some examples, {batch, examples}, which are their numbers
  rows: the sequences of tokens in these batches, without padding, {ids, labels, example}: lists of
    tokens, and of the label of each token, the next one or -100. labels may be nil
  labelled: the rows with labels, and with output, the list of their labels other than -100. Of an
    encoder-decoder what its decoder writes, without ids
  tokenizer, model: those that the script made
  params, trained: the tree of parameters, and the names of those that the optimizer trains
  loss, gradients: of a small batch. gradients[name] is nil if the loss does not depend on it]], {})

check.add = registry.define("redco.check.add", [[
add({name, title, advice: string, find: function, level = "warning", needs: list of strings = {}})
Adds a check to those of `redco-lua check`. Other runs of the script ignore it. The script calls it
before it trains.
  name: a word for reports
  title: says what is wrong
  advice: says what to do
  find: find(subject) returns the number of mistakes in a CheckSubject, nil or 0 for none, and if it
    likes the number of things that it looked at and a text about the places. An error in it ends the
    command
  level: "error", with which the command ends with exit code 1, or "warning"
  needs: the fields of the CheckSubject that find reads. If one is nil, the check is not made]],
function(row)
  if type(row) ~= "table" then
    fail("check.add: expected a table of named arguments, got %s", native.describe(row))
  end
  for _, name in ipairs { "name", "title", "advice" } do check_text(row, name) end
  local level = row.level or "warning"
  check_choice("check.add", "level", level, "error", "warning")
  if type(row.find) ~= "function" then
    fail("check.add: find: expected a function, got %s", native.describe(row.find))
  end
  added[#added + 1] = { name = row.name, level = level, title = row.title, advice = row.advice,
    needs = row.needs or {}, find = row.find }
end)

return registry.define("redco.check", [[
redco.check
`redco-lua check train.lua` runs a script until it begins to train, and looks for mistakes in what it
would train with. A script can add checks.]], strict("redco.check", check))
