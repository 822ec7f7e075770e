--- Checks of the prompts of a sampler, which a rollout may meet late.
local attempt = require "redco.check.attempt"
local prompt_of = require("redco.rl.language.samples").prompt_of
local without_position = require "redco.without_position"

local function are_refused(s)
  local sampler, count, first = s.sampler, 0, nil
  local size = #sampler.examples
  local of = math.min(size, s.n_rows)
  for k = 1, of do
    local i = math.floor((k - 0.5) * size / of) + 1
    local ok, message = attempt(prompt_of, sampler, sampler.examples[i], i)
    if not ok then count, first = count + 1, first or without_position(message) end
  end
  return count, of, first
end

return {
  { name = "refused_prompts", level = "error",
    title = "prompts that end the run when they are drawn",
    advice = "leave them out; shorten long ones, or lower max_completion_length",
    needs = { "sampler" }, find = are_refused },
}
