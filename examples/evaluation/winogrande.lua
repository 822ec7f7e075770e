-- WinoGrande: which word fits into the gap, by the end of the sentence.
-- https://winogrande.allenai.org, the validation split.
return {
  data = "data/winogrande.jsonl",
  output_type = "multiple_choice",
  -- A number: the prompts are the choices, and the target follows each of them.
  doc_to_text = function(doc) return tonumber(doc.answer) - 1 end,
  doc_to_choice = function(doc)
    local before = doc.sentence:match "^[^_]*"
    return { before .. doc.option1, before .. doc.option2 }
  end,
  doc_to_target = function(doc) return doc.sentence:match "_%s*(.-)%s*$" end,
  metric_list = { { metric = "acc" } },
  metadata = { version = 1.0 },
}
