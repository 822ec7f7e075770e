--- The tasks of encoder-decoders besides writing text: rows of tasks/init.lua.
local dropout = { dropout = { "classifier_dropout" } }

--- Returns the tasks of a family whose classes in transformers begin with `name`. `prefix` stands
--- before the names of its parameters in classifiers; of a family without one the encoder alone
--- classifies tokens.
return function(name, prefix)
  return {
    sequence_classification = {
      architecture = name .. "ForSequenceClassification", prefix = prefix,
      head = "classification_head.out_proj",
      layers = { "end", dropout, { linear = "classification_head.dense", activation = "tanh" },
        dropout },
    },
    token_classification = prefix and {
      architecture = name .. "ForTokenClassification", prefix = prefix, has_encoder_only = true,
      ignored = { "^decoder%.", "^transformer%.decoder%." }, head = "classifier",
      layers = { dropout },
    },
    question_answering = {
      architecture = name .. "ForQuestionAnswering", head = "qa_outputs", layers = {},
    },
  }
end
