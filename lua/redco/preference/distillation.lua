--- Distillation: divergences of a student's next tokens from those of a teacher.
local arguments = require "redco.arguments"
local checks = require "redco.preference.checks"
local registry = require "redco.registry"
local torch = require "redco.torch"
local widened = require "redco.nn.widened"

local where = "preference.distillation"
local options = arguments(where, { beta = 0.5, temperature = 1, ignore_index = -100 },
  { "logits", "teacher_logits", "labels" })

-- The divergence of q from p, of log-probabilities, by class.
local function divergence(p, q) return p:exp() * (p - q) end

return registry.define("redco.preference.distillation", [[
distillation{logits [..., classes], teacher_logits [..., classes], labels [...], beta = 0.5, temperature = 1, ignore_index = -100} -> loss, count
Computes the generalised Jensen-Shannon divergence of the student from the teacher (arXiv
2306.13649), a mean over the labels that are not ignore_index, and returns it with their number, as a
loss_fn does. The teacher's logits get no gradient.
  labels: where the divergence counts; their values do not matter otherwise
  beta: 0 is the forward divergence KL(teacher, student), 1 the reverse one, KL(student, teacher);
    between them both are compared with beta teacher + (1 - beta) student
  temperature: both logits are divided by it]],
function(given)
  local o = options(given)
  if not torch.is_tensor(o.logits) then
    checks.tensor(where, "logits", o.logits, "[..., classes]")
  end
  checks.same(where, "labels", o.labels, o.logits:select(-1, 0), "logits without its classes")
  checks.floating(where, "logits", o.logits)
  checks.same(where, "teacher_logits", o.teacher_logits, o.logits, "logits")
  checks.number(where, o, "beta", 0, 1)
  checks.number(where, o, "temperature", 0, math.huge, true)
  local student = (widened(o.logits) / o.temperature):log_softmax(-1)
  local teacher = (widened(o.teacher_logits:detach()) / o.temperature):log_softmax(-1)
  local terms
  if o.beta == 0 then
    terms = divergence(teacher, student)
  elseif o.beta == 1 then
    terms = divergence(student, teacher)
  else
    local mixture = torch.logaddexp(student + math.log(1 - o.beta), teacher + math.log(o.beta))
    terms = o.beta * divergence(teacher, mixture) + (1 - o.beta) * divergence(student, mixture)
  end
  local is_ignored = o.labels:eq(o.ignore_index)
  local count = is_ignored:logical_not():sum()
  return terms:sum(-1):masked_fill(is_ignored, 0):sum() / count:clamp(1), count
end)
