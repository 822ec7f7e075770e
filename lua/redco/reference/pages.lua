--- The pages of docs/reference, in Markdown: one for each module or class of note, and an index.
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

-- The anchors of a page's headings as GitHub makes them: in lower case, without punctuation, and
-- numbered where two are the same.
local function anchors_of(headings)
  local anchors, uses = {}, {}
  for _, heading in ipairs(headings) do
    local slug = heading:lower():gsub("[^%w_%- ]", ""):gsub(" ", "-")
    anchors[heading] = uses[slug] and slug .. "-" .. uses[slug] or slug
    uses[slug] = (uses[slug] or 0) + 1
  end
  return anchors
end

-- The modules and classes of a page with what is shown in each, a class' constructor first.
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

-- The full name that code in the text of `context` means, with the page it is on.
local function resolve(code, context)
  local group = surface.is_group(context) and context or surface.owner(context)
  for _, name in ipairs { code, "redco." .. code, group .. "." .. code, group .. ":" .. code } do
    local page = name:find "^[%w_.:]+$" and registry.text(name) and surface.page(name)
    if page then return name, page end
  end
end

-- Prose: names in backticks become links, and what Markdown would take for its own is escaped.
local function linked(text, context)
  local parts = {}
  for plain, code in (text .. "``"):gmatch "([^`]*)`([^`]*)`" do
    parts[#parts + 1] = plain:gsub("[*<]", "\\%0")
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

-- A signature as code, broken between arguments.
local function add_signature(lines, full_name, read)
  local prefix = surface.owner(full_name) .. full_name:match "([.:])[^.:]+$"
  lines[#lines + 1] = "\n```lua"
  wrap(lines, width, prefix .. read.head, "", "    ")
  lines[#lines + 1] = "```"
end

-- The types of arguments or fields, and in a table what there is to say of them.
local function add_arguments(lines, read, context)
  local rows, words, is_described = {}, {}, false
  for _, argument in ipairs(read.arguments) do
    if argument.name ~= "self" and argument.name ~= "..." then
      local type = types.of_argument(argument) .. (argument.shape and " " .. argument.shape or "")
      words[#words + 1] = ("`%s`: %s"):format(argument.name, type)
      rows[#rows + 1] = ("| `%s` | %s | %s |"):format(argument.name, type,
        linked(argument.text or "", context))
      is_described = is_described or argument.text ~= nil
    end
  end
  if #rows == 0 then return end
  lines[#lines + 1] = ""
  if not is_described then return wrap(lines, width, table.concat(words, "; ")) end
  lines[#lines + 1] = ("| %s | type | |\n| --- | --- | --- |"):format(
    read.kind == "class" and "field" or "argument")
  for _, row in ipairs(rows) do lines[#lines + 1] = row end
end

local function add_entry(lines, full_name)
  local read = surface.read(full_name)
  lines[#lines + 1] = "\n### " .. full_name
  if read.kind == "property" then
    lines[#lines + 1] = "\nA field: " .. read.type .. "."
    add_prose(lines, read, full_name)
  else
    add_signature(lines, full_name, read)
    add_prose(lines, read, full_name)
    add_arguments(lines, read, full_name)
  end
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
    if #group.entries > 0 then add_contents(lines, page[1], group) end
    for _, full_name in ipairs(group.entries) do add_entry(lines, full_name) end
  end
  return table.concat(lines, "\n") .. "\n"
end

local index_head = [[
# Reference

Every function of the library, from the texts that `help` shows at the prompt:
`redco-lua -e 'require("redco").help "fit"'`. ATen's operators are not listed here: they are those of
[PyTorch](https://docs.pytorch.org/docs/2.11/torch.html), as `torch.NAME(...)` and
`tensor:NAME(...)`, and `help "torch.NAME"` shows their schemas. A signature says how a function is
called: `name(positional, positional = default, {named, named = default}) -> results`, where the
named arguments are a table that comes last and may be left out.

For editors with the [lua-language-server](https://luals.github.io) the build writes stubs of all of
it, operators too, to `build/release/stubs`, and installs them in `share/redco/stubs`. `.luarc.json`
points there; a project of one's own needs a file like it.

| page | |
| --- | --- |]]

--- All pages, text by path.
function pages.files()
  find_anchors()
  local index, files = { generated, "", index_head }, {}
  for _, page in ipairs(surface.pages) do
    files[page[1] .. ".md"] = page_text(page)
    index[#index + 1] = ("| %s | %s |"):format(link(page[1], page[1]),
      linked(surface.summary(surface.read(page[2])), page[2]))
  end
  files["README.md"] = table.concat(index, "\n") .. "\n"
  return files
end

return pages
