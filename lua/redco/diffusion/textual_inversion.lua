--- Textual inversion (arXiv 2208.01618): a word of one's own for what a few pictures show, whose
--- vectors are all that is trained. In the files of diffusers, and of the web UI.
local added = require "redco.diffusion.added_tokens"
local check_integer = require "redco.check_integer"
local checks = require "redco.models.checks"
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"
local tree = require "redco.tree"

local inversion = {}

local stem = "learned_embeds"

-- The names of the vectors in a file for two text encoders.
local keys_of_two = { "clip_l", "clip_g" }

local function check_token(where, pipeline, places, token)
  if type(token) ~= "string" or not token:find "%S" then
    fail("%s: token: expected a text such as \"<cat>\", got %s", where, native.describe(token))
  end
  for _, entry in ipairs(pipeline.added_tokens) do
    if entry.token == token then fail("%s: the pipeline has the token %s already", where, token) end
  end
  for _, place in ipairs(places) do
    local ids = place.tokenizer:encode(token, { add_special_tokens = false })
    if #ids == 1 and place.tokenizer:convert_ids_to_tokens(ids[1]):gsub("</w>$", "") == token then
      fail("%s: the %s has the token %s already; choose another", where, place.part.tokenizer,
        token)
    end
  end
end

-- Adds a token with `vectors`, [n, size] for each text encoder, after the existing added tokens.
local function add(pipeline, places, params, token, vectors)
  local result, first_row = tree.map(function(leaf) return leaf end, params), nil
  for i, place in ipairs(places) do
    local own = result[place.part.encoder]
    local before, known = own[place.name], own[place.table_name]
    first_row = before and before:size(0) or 0
    own[place.name] = torch.no_grad(function()
      local rows = vectors[i]:to(known.dtype):to(known.device)
      if before then rows = torch.cat({ before, rows }, 0) end
      return native.parameter(rows.shape, { dtype = known.dtype }):copy_(rows)
    end)
  end
  local tokens = pipeline.added_tokens
  tokens[#tokens + 1] = { token = token, first_row = first_row, n_vectors = vectors[1]:size(0) }
  return result
end

--- Adds a token whose vectors begin as that of the word `initializer`.
function inversion.add(pipeline, token, initializer, n_vectors, params)
  local where = "diffusion.add_token"
  local places, vectors = added.places(where, pipeline), {}
  check_token(where, pipeline, places, token)
  check_integer(where, "n_vectors", n_vectors, 1)
  for i, place in ipairs(places) do
    local ids = place.tokenizer:encode(initializer, { add_special_tokens = false })
    if #ids ~= 1 then
      fail("%s: the initializer '%s' is %d tokens of the %s, expected one", where, initializer,
        #ids, place.part.tokenizer)
    end
    local known = params[place.part.encoder][place.table_name]
    local row = torch.tensor({ ids[1] }, { device = known.device })
    vectors[i] = torch.no_grad(function()
      return torch.embedding(known, row):expand { n_vectors, -1 }
    end)
  end
  return add(pipeline, places, params, token, vectors)
end

-- Returns the token of a file, or nil, and the vectors for each text encoder.
local function read(path, places)
  local found = torch.load(path)
  if torch.is_tensor(found) then return nil, { found } end
  if type(found.string_to_param) == "table" then  -- the web UI's .pt
    return found.name, { found.string_to_param["*"] }
  end
  if found.emb_params then return nil, { found.emb_params } end  -- its .safetensors
  if found.clip_l or found.clip_g then return nil, { found.clip_l, found.clip_g } end
  local token, vector = next(found)
  if token == nil or next(found, token) ~= nil or not torch.is_tensor(vector) then
    fail("%s: expected one token with its vectors, or %s, got %s", path,
      #places == 2 and "clip_l and clip_g" or "emb_params", native.describe(found))
  end
  return token, { vector }
end

-- The vectors [n, size] for each text encoder.
local function checked(path, places, vectors)
  local rows = {}
  for i, place in ipairs(places) do
    local given, size = vectors[i], place.model.config.hidden_size
    if not torch.is_tensor(given) then
      fail("%s: there are no vectors for the %s (%s)", path, place.part.encoder,
        #places == 2 and keys_of_two[i] or "one token with its vectors")
    end
    rows[i] = given:dim() == 1 and given:unsqueeze(0) or given
    if rows[i]:dim() ~= 2 or rows[i]:size(0) == 0 or rows[i]:size(1) ~= size then
      fail("%s: the vectors for the %s are [%s], expected [%d] or [vectors, %d]", path,
        place.part.encoder, table.concat(given.shape, ", "), size, size)
    end
    checks.dtype(path, place.part.encoder, given.dtype)
    checks.finite(path, { place.part.encoder }, { [place.part.encoder] = rows[i] })
    if rows[i]:size(0) ~= rows[1]:size(0) then
      fail("%s: there are %d vectors for the %s and %d for the %s, expected as many", path,
        rows[1]:size(0), places[1].part.encoder, rows[i]:size(0), place.part.encoder)
    end
  end
  return rows
end

--- Adds the token of a file, or of a folder with learned_embeds.safetensors or .bin.
function inversion.load(pipeline, path, token, params)
  local places = added.places("diffusion.load_textual_inversion", pipeline)
  for _, ending in ipairs { ".safetensors", ".bin" } do
    local inner = path .. "/" .. stem .. ending
    if native.file_exists(inner) then
      path = inner
      break
    end
  end
  local own, vectors = read(path, places)
  token = token or own
  if not token then
    fail("diffusion.load_textual_inversion: %s does not name its token: set the option token", path)
  end
  check_token("diffusion.load_textual_inversion", pipeline, places, token)
  return add(pipeline, places, params, token, checked(path, places, vectors))
end

--- Writes the vectors of a token as learned_embeds.safetensors.
function inversion.save(pipeline, dir, params, token)
  local where = "diffusion.save_textual_inversion"
  local places, tokens, entry = added.places(where, pipeline), pipeline.added_tokens, nil
  for _, one in ipairs(tokens) do
    if one.token == token or token == nil and #tokens == 1 then entry = one end
  end
  if not entry then
    local names = {}
    for i, one in ipairs(tokens) do names[i] = one.token end
    fail("%s: token: expected one of the added tokens (%s), got %s", where,
      #names > 0 and table.concat(names, ", ") or "there are none", native.describe(token))
  end
  local tensors = {}
  for i, place in ipairs(places) do
    local rows = params[place.part.encoder][place.name]
    if not rows then
      fail("%s: the parameters of the %s have no vectors of added tokens", where,
        place.part.encoder)
    end
    tensors[#places == 2 and keys_of_two[i] or entry.token] = torch.no_grad(function()
      return rows:narrow(0, entry.first_row, entry.n_vectors):clone()
    end)
  end
  native.save_weights(dir, tensors, { stem = stem })
end

return inversion
