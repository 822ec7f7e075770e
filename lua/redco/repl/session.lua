--- A prompt without a terminal: it takes lines, detects complete chunks, runs them and returns
--- text. It does no input or output itself, so a terminal, a pipe or another program can drive it.
local completion = require "redco.repl.completion"
local help = require "redco.help"
local lazy = require "redco.lazy"
local members = require "redco.repl.members"
local native = require "redco.native"
local output = require "redco.repl.output"
local pretty = require "redco.repl.pretty"
local who = require "redco.repl.who"

local Session = {}
Session.__index = Session

local commands = [[
?NAME     what it is: ?torch.matmul, ?Tensor:sum, ?redco.Trainer; the same as help(NAME)
?WORDS    what the reference says about them: ?learning rate, ?resume
??WORDS   all entries that mention them, also if they are a name: ??clip
who()     your globals
img(x)    shows the picture x, [channels, height, width]: redco.data.show_image
_         the last value
x = 1     keeps a value; `local x = 1` ends with its chunk
f(x);     a `;` at the end shows no value
TAB       completes names, fields, methods, named arguments, keys, modules and files
Ctrl-C    ends what runs, or clears the line
:q        ends the prompt, as Ctrl-D does]]

-- Returns whether a chunk is only incomplete: the error is at the end of the text.
local function lacks_end(message)
  return message:find("near '<eof>'", 1, true) ~= nil
end

local function itself(...) return ... end

-- Returns a function that calls its argument with the values of an expression.
local function load_call(statements, expression)
  return loadstring(statements .. "return (...)(" .. expression .. ")", "=stdin")
    or loadstring(statements .. "return (...)(" .. expression .. "\n)", "=stdin")  -- a comment
end

-- Returns a function that runs the statements of a text and returns the values of the expression at
-- its end, which follows `separator`; nil if the text has another form.
local function load_statements(text, separator)
  local body, position, ends = text:gsub("[%s;]+$", ""), 0, {}
  while true do
    position = body:find(separator, position + 1, true)
    if not position then break end
    ends[#ends + 1] = position
  end
  for i = #ends, 1, -1 do
    local statements, expression = body:sub(1, ends[i]), body:sub(ends[i] + 1)
    if expression:find "%S" and loadstring("return " .. expression) and loadstring(statements) then
      return load_call(statements .. " ", expression)
    end
  end
end

--- Returns the function of a chunk, to be called with `itself`; or nil, the message, and whether
--- more lines may complete it.
local function load_chunk(text)
  local expression = text:gsub("^%s*=", "", 1)
  local chunk, message = loadstring("return " .. expression .. "\n", "=stdin")
  -- A tail call in `return` would leave no frame of the chunk, and errors would have no position.
  if chunk then
    local values = expression:gsub(";%s*$", "")
    return load_call("", values) or chunk
  end
  local is_incomplete = lacks_end(message)
  chunk = load_statements(text, ";")
  if chunk then return chunk end
  chunk, message = loadstring(text .. "\n", "=stdin")
  -- Only now: the next line may continue an expression.
  if not chunk then
    chunk = load_statements(text, "\n")
  elseif text:find "\n%s*[%a_][^\n]*%)%s*$" then
    chunk = load_statements(text, "\n") or chunk  -- the last line is a call
  end
  return chunk, message, not chunk and (is_incomplete or lacks_end(message))
end

--- Takes one more line, or several. Returns
---   "more"         the chunk is incomplete
---   "chunk", text  the chunk is complete: `run` it
---   "quit"         the user asked to end
function Session:feed(line)
  local text = self.pending and self.pending .. "\n" .. line or line
  local command = not self.pending and line:match "^%s*([:?].*)$"
  if command then
    if command:find "^:q%s*$" then return "quit" end
    return "chunk", command
  end
  local _, _, is_incomplete = load_chunk(text)
  if is_incomplete then
    self.pending = text
    return "more"
  end
  self.pending = nil
  return "chunk", text
end

--- Drops the lines of an incomplete chunk and returns them, or nil.
function Session:forget()
  local text = self.pending
  self.pending = nil
  return text
end

-- Returns the traceback lines of the user's functions, newest first.
local function user_frames(traceback)
  local frames = {}
  for line in traceback:gmatch "[^\n]+" do
    if line:find "^%s*redco/repl/session" then break end
    local is_ours = line:find "^%s*%[C%]" or line:find "^%s*%[builtin" or line:find "^%s*redco/"
      or line:find "^stack traceback"
    if not is_ours then
      frames[#frames + 1] = (line:gsub("in function <stdin:0>", "in main chunk"))
    end
  end
  -- If the chunk called nothing, the message already has the position.
  return #frames > 1 and table.concat(frames, "\n") or nil
end

local function answer_command(command)
  local name = command:match "^%?%s*(.-)%s*$"
  if not name then
    local is_help = command:find "^:h%s*$"
    return { text = is_help and commands or nil,
      message = not is_help and command .. ": there are :h and :q" or nil }
  end
  if name == "" then return { text = commands } end
  local text
  local words = name:match "^%?%s*(.+)$"  -- of a search
  name = words or name
  for _, subject in ipairs(words and {} or members.subjects(name)) do
    text = text or help.text(subject)
  end
  text = text or help.search(name)
  return { text = text, is_help = true,
    message = not text and require "redco.reference.search".missing(name) or nil }
end

-- Explains once that a local variable ends with its chunk.
function Session:hint(chunk)
  local name = not chunk:find "[;\n]" and chunk:match "^%s*local%s+([%a_][%w_]*)"
  if not name or self.has_hinted then return end
  self.has_hinted = true
  if name == "function" then name = chunk:match "function%s+([%a_][%w_]*)" end
  return ("%s is gone: a local ends with its chunk; without `local` it stays"):format(name)
end

function Session:answer(chunk, ok, ...)
  if not ok then
    local message, traceback = ...
    -- Another interrupt may come: of a process that has ended its turn.
    local is_done, frames = native.try(user_frames, traceback)
    return { message = message, traceback = is_done and frames or nil }
  end
  local n = select("#", ...)
  if n > 0 and (...) ~= nil then rawset(_G, "_", (...)) end
  if n == 0 or chunk:find ";%s*$" then return { hint = self:hint(chunk) } end
  -- `exit`, as at the prompt of Python.
  local name = n == 1 and (...) == nil and chunk:match "^%s*([%a_][%w_]*)%s*$"
  local advice = name and native.advice_on_name(name) or ""
  if advice ~= "" then return { text = name .. " is nil" .. advice } end
  local texts = {}
  for i = 1, n do
    local is_shown, text, traceback = native.try(pretty.answer, (select(i, ...)), self.options)
    if not is_shown then return { message = text, traceback = user_frames(traceback) } end
    texts[i] = text:gsub("\n", self.options.line_separator or "\n")
  end
  return { text = table.concat(texts, "\n") }
end

--- Runs a complete chunk. Returns a table with those of these fields that apply:
---   text       the values, or texts of `help`
---   is_help    whether the text has texts of `help`, which may be long
---   message    the error, with its position, and `traceback`, the user's frames
---   hint       advice
function Session:run(chunk)
  if chunk:find "^[:?]" then return answer_command(chunk) end
  local body, message = load_chunk(chunk)
  if not body then
    return { message = message .. native.advice_on_syntax(message, chunk) }
  end
  local texts = {}
  output.show = function(text) texts[#texts + 1] = text end
  local answer = self:answer(chunk, native.try(body, itself))
  if #texts > 0 then
    texts[#texts + 1] = answer.text
    answer.text, answer.is_help = table.concat(texts, "\n"), true
  end
  return answer
end

--- Completes the line at the byte `cursor`, after the lines that were fed: see
--- redco.repl.completion.
function Session:complete(line, cursor)
  return completion(line, cursor, self.pending)
end

local session = {}

--- Returns a prompt. `options`: `width` of lines in columns, `colors`, whether values have them,
--- and `line_separator` between the lines of one value. From then on scripts may assign globals,
--- and `redco`, `torch`, `nn`, `optim`, `help`, `who` and `img` are globals.
function session.new(options)
  -- Compiled loops cannot be interrupted.
  jit.off()
  jit.flush()
  setmetatable(_G, nil)
  local redco = require "redco"
  lazy.load_all()  -- completion lists fields
  for name, value in pairs { redco = redco, torch = redco.torch, nn = redco.nn,
    optim = redco.optim, help = help, who = who, img = redco.data.show_image } do
    if rawget(_G, name) == nil then rawset(_G, name, value) end
  end
  return setmetatable({ options = options }, Session)
end

return session
