--- Beam search, as Hugging Face's: of 2 k candidates it keeps the k best that continue, and of all
--- finished sequences the k best by score / length^length_penalty.
local torch = require "redco.torch"

local never = -1e9  -- a score that loses against any other

-- Selects rows of [batch, n, ...] by index [batch, k].
local function pick(t, index)
  local dims = { index:size(0), index:size(1) }
  for i = 3, t:dim() do
    index, dims[i] = index:unsqueeze(-1), t:size(i - 1)
  end
  return t:gather(1, index:expand(dims))
end

local function penalty(flags) return flags:float() * never end

--- `ids` is [batch * beams, max_length], with `length` known tokens. Returns the sequences [batch,
--- beams, max_length], best first, their scores [batch, beams], and the length of the longest.
return function(decoder, scores, process, ended, ids, length, o)
  local k, prompt = o.num_beams, length
  local batch = ids:size(0) / k
  local n_candidates = math.max(2, 1 + #o.eos) * k
  local running = ids:view { batch, k, o.max_length }
  local device = ids.device
  local running_scores = torch.full({ batch, k }, never, { device = device })
  running_scores:select(1, 0):zero_()  -- all beams are equal at first
  local best, best_scores = running:clone(), torch.full_like(running_scores, never)
  local best_length = torch.full({ batch, k }, length, { dtype = "int64", device = device })
  local has_ended = torch.zeros({ batch, k }, { dtype = "bool", device = device })
  local can_improve = torch.ones({ batch, 1 }, { dtype = "bool", device = device })
  local is_top = torch.arange(n_candidates, { device = device }):lt(k)

  while true do
    local seen = running:view { batch * k, -1 }:narrow(1, 0, length)
    local log_probs = process(scores:log_softmax(-1), seen)
    local vocab_size = log_probs:size(1)
    local sums = log_probs:full():view { batch, k, vocab_size } + running_scores:unsqueeze(-1)
    local candidate_scores, places = sums:view { batch, -1 }:topk(n_candidates, 1)
    local from = places:div(vocab_size, { rounding_mode = "floor" })
    local candidates = pick(running, from)
    candidates:select(2, length):copy_(places % vocab_size)
    length = length + 1
    local hits = ended(candidates:view { batch * n_candidates, -1 }, length):view { batch, -1 }
    if length == o.max_length then hits = torch.ones_like(hits) end

    -- The beams that continue.
    local going
    running_scores, going = (candidate_scores + penalty(hits)):topk(k, 1)
    running = pick(candidates, going)
    local parents = pick(from, going)

    -- The beams that are finished.
    local just_ended = hits:logical_and(is_top)
    local lost = just_ended:logical_not():logical_or(can_improve:logical_not())
    if o.early_stopping == true then
      lost = lost:logical_or(has_ended:all(1, { keepdim = true }))
    end
    local final = candidate_scores / (length - prompt) ^ o.length_penalty + penalty(lost)
    local all_scores = torch.cat({ best_scores, final }, 1)
    local chosen
    best_scores, chosen = all_scores:topk(k, 1)
    best = pick(torch.cat({ best, candidates }, 1), chosen)
    local lengths = torch.full_like(places, length)
    best_length = pick(torch.cat({ best_length, lengths }, 1), chosen)
    has_ended = pick(torch.cat({ has_ended, just_ended }, 1), chosen)

    -- Can a continuing beam still beat the worst finished one?
    local longest = o.early_stopping == "never" and o.length_penalty > 0 and o.max_length or length
    local hope = running_scores:narrow(1, 0, 1) / (longest - prompt) ^ o.length_penalty
    local worst = torch.where(has_ended, best_scores:amin(1, { keepdim = true }), never)
    can_improve = can_improve:logical_and(hope:gt(worst):any(1, { keepdim = true }))
    if not can_improve:any():item() or hits:all():item()
      or (o.early_stopping == true and has_ended:all():item()) then
      return best, best_scores, best_length
    end
    decoder.cache:reorder(parents)
    scores = decoder:step(running:view { batch * k, -1 }:select(1, length - 1))
  end
end
