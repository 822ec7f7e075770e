--- ERNIE 1 to 3 (Sun et al., 2019), as Hugging Face's `ErnieForMaskedLM` and other classes: BERT
--- with an embedding of the task, of which that of the first is read.
local bert = require "redco.models.families.bert"

return bert.like_bert {
  model_type = "ernie",
  models = "ERNIE 1.0, 2.0 and 3.0",
  class = "Ernie",
  prefix = "ernie",
  first_task = function(c) return c.use_task_id and c.task_type_vocab_size end,
  more = { task_type_vocab_size = 3, use_task_id = false },
}
