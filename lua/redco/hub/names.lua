--- Names on the Hugging Face Hub: "org/name" or "name", then "@revision" if it is not "main", then
--- "/path" of a folder or a file there.

local part = "[%w_][%w_.-]*"

local function is_plain(text)
  return not text:find("..", 1, true) and not text:find("--", 1, true)
end

-- Returns the revision and the path behind a name.
local function read_rest(rest)
  local revision, path = rest:match "^@([^/]+)(.*)$"
  if not revision then path = rest end
  if path ~= "" and path:sub(1, 1) ~= "/" then return nil end
  path = path:gsub("/+$", ""):sub(2)
  return revision or false, path
end

local function parsed(text)
  local org, name, rest = text:match("^(" .. part .. "/)(" .. part .. ")(.*)$")
  if not org then org, name, rest = "", text:match("^(" .. part .. ")(.*)$") end
  if not name or org == "" and rest:find "^/" then return nil end
  local id, revision, path = org .. name, read_rest(rest)
  if revision == nil or not is_plain(id) or (path .. "/"):find("../", 1, true) then return nil end
  return { id = id, revision = revision or nil, path = path }
end

--- Returns {id, revision, path} of a text that can be a name, else nil. `revision` is nil and
--- `path` is "" where the text has none.
return function(text) return type(text) == "string" and parsed(text) or nil end
