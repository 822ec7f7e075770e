--- Names of the Hugging Face Hub in the place of paths: their files are in the cache that this
--- program shares with huggingface_hub, or are downloaded into it.
local data_files = require "redco.hub.data_files"
local download = require "redco.hub.download"
local fail = require "redco.fail"
local native = require "redco.native"
local needed = require "redco.hub.needed"
local parsed = require "redco.hub.names"
local places = require "redco.hub.places"

local hub = {}

-- The list of the files in a folder, with their contents.
local function source_of(folder)
  return {
    names = native.list_files(folder),
    has = function(name) return native.file_size(folder .. "/" .. name) ~= nil end,
    text = function(name)
      local file = native.byte_file(folder .. "/" .. name, "a file")
      return file:bytes(0, #file)
    end,
  }
end

-- Returns the folder of a revision in the cache, or nil.
local function snapshot_of(folder, revision)
  local file = io.open(("%s/refs/%s"):format(folder, revision))
  local commit = file and file:read "*l" or revision
  if file then file:close() end
  local path = ("%s/snapshots/%s"):format(folder, commit)
  return native.file_exists(path) and path or nil
end

-- Returns advice on how to get missing files.
local function advice(why)
  if why == "offline" then return "HF_HUB_OFFLINE forbids to download it" end
  return "to download it, run redco-lua with --download or give the option download = true"
end

local function fail_missing(where, text, what, how)
  fail("%s: there is no file or folder %s here, and the cache of the Hugging Face Hub, %s, has no "
    .. "%s; %s", where, text, places.cache(), what, how)
end

local function repository(where, name, o, is_dataset)
  local revision = o.revision or name.revision or "main"
  if type(revision) ~= "string" or not revision:find "^[%w_]" or revision:find("..", 1, true) then
    fail("%s: revision: expected a branch, a tag or a commit, got %s", where,
      native.describe(revision))
  end
  return { id = name.id, revision = revision, is_dataset = is_dataset }
end

-- Returns the folder of a repository's snapshot and the files there that need(source) lists.
-- Downloads them if the options ask for it. If there are none, returns nil and the reason.
local function located(repo, need, o)
  local folder = ("%s/%s--%s"):format(places.cache(), repo.is_dataset and "datasets" or "models",
    repo.id:gsub("/", "--"))
  local function present()
    local snapshot, names, missing = snapshot_of(folder, repo.revision), nil, nil
    if snapshot then names, missing = need(source_of(snapshot)) end
    return snapshot, names, missing
  end
  local snapshot, names, missing = present()
  if names then return snapshot, names end
  local is_allowed, why = places.may_download(o.download)
  if not is_allowed then
    return nil, snapshot and ("%s in the cache, %s, has no %s: %s"):format(repo.id, snapshot,
      missing, advice(why)) or nil, advice(why)
  end
  download(repo, folder, need, function() return select(2, present()) ~= nil end)
  snapshot, names = present()
  return snapshot, names
end

--- Returns the path of what `text` names, for a function `where` that reads this `kind` of folder,
--- a kind of redco.hub.needed: `text` itself if it is a path of this machine, or else the folder in
--- the cache of the Hub. options: revision, download. Raises an error if there is neither.
function hub.path(where, text, kind, options)
  local o = options or {}
  local name = parsed(text)
  if not name or native.file_exists(text) then return text end
  local repo = repository(where, name, o, false)
  local snapshot, reason, how = located(repo, function(source)
    return needed(source, kind, name.path)
  end, o)
  if snapshot then return name.path == "" and snapshot or snapshot .. "/" .. name.path end
  if reason then fail("%s: %s", where, reason) end
  fail_missing(where, text, repo.id .. (repo.revision ~= "main" and " of the revision "
    .. repo.revision or ""), how)
end

--- Returns a list of the files of a data set: of a folder, or of one of the Hub, by its name.
--- Returns nil if `text` is something else, such as a file. options: name (of a configuration),
--- split, revision, download. `endings` are those of the files that the function `where` reads.
function hub.data_files(where, text, endings, options)
  if type(text) ~= "string" then return nil end
  local function full(folder, names)
    local paths = {}
    for i, name in ipairs(names) do paths[i] = folder .. "/" .. name end
    return paths
  end
  local function need_in(path)
    return function(source) return data_files.find(source, path, endings, options) end
  end
  if native.file_exists(text) then
    if not native.file_exists(text .. "/.") then return nil end
    local names, missing = need_in "" (source_of(text))
    return names and full(text, names) or fail("%s: the folder %s has no %s", where, text, missing)
  end
  local name = parsed(text)
  -- "data/train.jsonl" is a missing file, not a repository.
  local is_file = name and name.path == "" and data_files.has_ending(name.id, endings)
  if not name or is_file or not name.id:find "/" then return nil end
  local repo = repository(where, name, options, true)
  local snapshot, names, how = located(repo, need_in(name.path), options)
  if snapshot then return full(snapshot, names) end
  if names then fail("%s: %s", where, names) end
  fail_missing(where, text, "data set " .. repo.id, how)
end

return hub
