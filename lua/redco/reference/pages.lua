--- Generates the pages of docs/reference in Markdown, and their index.
local examples = require "redco.reference.examples"
local families = require "redco.reference.families"
local pytorch = require "redco.reference.pytorch"
local registry = require "redco.registry"
local surface = require "redco.reference.surface"
local types = require "redco.reference.types"
local wrap = require "redco.reference.wrap"

local pages = {}

local width = 100

local generated = [[
<!-- Generated from the texts in bindings/ and lua/redco. Change those, then run
     cmake --build build/release --target reference -->]]

local function link(text, page, anchor)
  return ("[%s](%s.md%s)"):format(text, page, anchor and "#" .. anchor or "")
end

-- Returns the anchors of headings as GitHub makes them: in lower case, without punctuation, and
-- numbered if two are equal.
local function anchors_of(headings)
  local anchors, uses = {}, {}
  for _, heading in ipairs(headings) do
    local slug = heading:lower():gsub("[^%w_%- ]", ""):gsub(" ", "-")
    anchors[heading] = uses[slug] and slug .. "-" .. uses[slug] or slug
    uses[slug] = (uses[slug] or 0) + 1
  end
  return anchors
end

-- Returns the modules and classes of a page with their entries; the constructor of a class comes
-- first.
local function groups_of(page)
  local groups = {}
  for i = 2, #page do
    local entries, constructor = {}, surface.constructor(page[i])
    if constructor then entries[1] = constructor end
    for _, full_name in ipairs(surface.members(page[i])) do
      if not surface.constructed(full_name) then entries[#entries + 1] = full_name end
    end
    groups[#groups + 1] = { name = page[i], entries = entries }
  end
  return groups
end

local anchors  -- of each page, by full name

local function find_anchors()
  anchors = {}
  for _, page in ipairs(surface.pages) do
    local headings = { page[1] }
    for i, group in ipairs(groups_of(page)) do
      if i > 1 or group.name ~= page[1] then headings[#headings + 1] = group.name end
      for _, full_name in ipairs(group.entries) do headings[#headings + 1] = full_name end
    end
    anchors[page[1]] = anchors_of(headings)
  end
end

-- Resolves a code word in the text of `context` to a full name, and returns its page too. The
-- arguments of `context` come first, then its own module or class.
local function resolve(code, context)
  local group = surface.is_group(context) and context or surface.owner(context)
  for _, argument in ipairs(surface.read(context).arguments) do
    if argument.name == code then return nil end
  end
  for _, name in ipairs { code, group .. "." .. code, group .. ":" .. code, "redco." .. code } do
    local page = name:find "^[%w_.:]+$" and registry.text(name) and surface.page(name)
    if page then return name, page end
  end
end

-- Links the names of classes to their pages, except on these pages, and except Tensor, which is
-- everywhere.
local function with_classes(text, context)
  return (text:gsub("%f[%w_.]%u%w+%f[^%w_]", function(word)
    if word ~= "Tensor" and types.classes[word] and surface.page(word) ~= surface.page(context) then
      return link(word, surface.page(word), anchors[surface.page(word)][word])
    end
  end))
end

-- Converts prose: names in backticks and those of classes become links, and Markdown's special
-- characters are escaped.
local function linked(text, context)
  local parts = {}
  for plain, code in (text .. "``"):gmatch "([^`]*)`([^`]*)`" do
    parts[#parts + 1] = with_classes(plain:gsub("[*<]", "\\%0"), context)
    local name, page = resolve(code, context)
    if name and name ~= context then
      parts[#parts + 1] = link("`" .. code .. "`", page, anchors[page][name])
    elseif code ~= "" then
      parts[#parts + 1] = "`" .. code .. "`"
    end
  end
  return table.concat(parts)
end

local function add_prose(lines, read, context)
  for _, paragraph in ipairs(read.paragraphs) do
    lines[#lines + 1] = ""
    wrap(lines, width, linked(paragraph, context))
  end
end

-- Adds the types of arguments or fields, as a table if they are described. Neighbours with one text
-- share a row.
local function add_arguments(lines, read, context)
  local rows, words, is_described = {}, {}, false
  for _, argument in ipairs(read.arguments) do
    if argument.name ~= "self" and argument.name ~= "..." then
      local name = "`" .. argument.name .. "`"
      local type = with_classes(types.of_argument(argument), context)
        .. (argument.shape and " " .. argument.shape or "")
      words[#words + 1] = name .. ": " .. type
      local row = rows[#rows]
      if row and argument.text and row.text == argument.text then
        row.name, row.types[#row.types + 1] = row.name .. ", " .. name, type
        row.is_one_type = row.is_one_type and type == row.types[1]
      else
        rows[#rows + 1] = { name = name, types = { type }, is_one_type = true,
          text = argument.text }
      end
      is_described = is_described or argument.text ~= nil
    end
  end
  if #rows == 0 then return end
  lines[#lines + 1] = ""
  local title = read.kind == "class" and "Fields" or "Arguments"
  if not is_described then return wrap(lines, width, title .. ": " .. table.concat(words, "; ")) end
  lines[#lines + 1] = ("| %s | type | |\n| --- | --- | --- |"):format(title)
  for _, row in ipairs(rows) do
    local type = row.is_one_type and row.types[1] or table.concat(row.types, ", ")
    lines[#lines + 1] = ("| %s | %s | %s |"):format(row.name, type, linked(row.text or "", context))
  end
end

local function add_example(lines, full_name)
  local example = examples.of(full_name)
  if not example then return end
  local base = example.after
  if base then
    local name = "`" .. base .. "`"
    lines[#lines + 1] = ("\nContinues the example of %s:"):format(
      link(name, surface.page(base), anchors[surface.page(base)][base]))
  end
  lines[#lines + 1] = "\n```lua\n" .. example.code .. "\n```"
  local others = {}
  for _, name in ipairs(examples.uses(full_name)) do
    others[#others + 1] = link("`" .. name .. "`", surface.page(name),
      anchors[surface.page(name)][name])
  end
  if #others > 0 then
    lines[#lines + 1] = ""
    wrap(lines, width, "See also " .. table.concat(others, ", ") .. ".")
  end
end

local function add_address(lines, full_name)
  local address, name = pytorch.address(full_name)
  if address then lines[#lines + 1] = ("\nIn PyTorch: [%s](%s)"):format(name, address) end
end

local function add_entry(lines, full_name)
  local read = surface.read(full_name)
  lines[#lines + 1] = "\n### " .. full_name
  if read.kind == "property" then
    lines[#lines + 1] = "\nA field: " .. read.type .. "."
    add_prose(lines, read, full_name)
  else
    lines[#lines + 1] = "\n```lua"
    wrap(lines, width, surface.signature(full_name), "", "    ")
    lines[#lines + 1] = "```"
    add_prose(lines, read, full_name)
    add_arguments(lines, read, full_name)
  end
  add_example(lines, full_name)
  add_address(lines, full_name)
end

local function add_contents(lines, page, group)
  lines[#lines + 1] = ""
  for _, full_name in ipairs(group.entries) do
    lines[#lines + 1] = ("- %s: %s"):format(
      link("`" .. full_name .. "`", page, anchors[page][full_name]),
      linked(surface.summary(surface.read(full_name)), full_name))
  end
end

local function page_text(page)
  local lines = { generated, "", "# " .. page[1], "", link("All pages", "README") }
  for i, group in ipairs(groups_of(page)) do
    local read = surface.read(group.name)
    if i > 1 or group.name ~= page[1] then lines[#lines + 1] = "\n## " .. group.name end
    add_prose(lines, read, group.name)
    add_arguments(lines, read, group.name)
    add_example(lines, group.name)
    add_address(lines, group.name)
    if #group.entries > 0 then add_contents(lines, page[1], group) end
    for _, full_name in ipairs(group.entries) do add_entry(lines, full_name) end
  end
  return table.concat(lines, "\n") .. "\n"
end

local index_head = [[
# Reference

These pages describe every function of the library. `help` shows the same texts:
`redco-lua -e 'require("redco").help "fit"'`.

A signature has the form `name(positional, positional = default, {named, named = default}) ->
results`. The named arguments are a table, which comes last. Arguments without a default are
required; `= nil` marks those that may be omitted.

Examples have the locals `redco`, `torch` and `nn`:

```lua
%s```

`-->` shows what an example prints; `...` stands for any text. The tests run all of them. Model
folders, such as `gpt2`, are those of tiny models with random weights there.

ATen's operators are not listed. They have the names of
[PyTorch](https://docs.pytorch.org/docs/stable/torch.html), as `torch.NAME(...)` and
`tensor:NAME(...)`. `help "torch.NAME"` shows their schemas and the address of PyTorch's page.

For editors with the [lua-language-server](https://luals.github.io), the build writes stubs of all
functions and operators to `build/release/stubs` and installs them in `share/redco/stubs`.
`.luarc.json` points there; your own project needs a similar file.

| page | |
| --- | --- |]]
index_head = index_head:format(examples.head)

--- Returns all pages, text by path.
function pages.files()
  find_anchors()
  local index, files = { generated, "", index_head }, {}
  for _, page in ipairs(surface.pages) do
    files[page[1] .. ".md"] = page_text(page)
    index[#index + 1] = ("| %s | %s |"):format(link(page[1], page[1]),
      linked(surface.summary(surface.read(page[2])), page[2]))
  end
  index[#index + 1] = "| [families](families.md) | The families of models: types, names, tasks |"
  files["families.md"] = families(generated)
  files["README.md"] = table.concat(index, "\n") .. "\n"
  return files
end

return pages
