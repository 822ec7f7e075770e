--- Generates the page of the families of models, from `redco.models.families`.
local redco = require "redco"

-- The letters of tasks, as docs/models.md explains them.
local letters = {
  causal_lm = "C", sequence_classification = "S", token_classification = "T",
  question_answering = "A", masked_lm = "M", multiple_choice = "P", replaced_token_detection = "R",
}

local sections = {
  { "decoder", "Decoders" }, { "encoder-decoder", "Encoder-decoders" }, { "encoder", "Encoders" },
  { "images", "Images, and images with texts" }, { "sound", "Sound" },
}

local head = [[


# Families of models

[All pages](README.md)

Each family is compared with transformers 4.57 and 5.24: random configurations and weights, their
logits, losses, gradients, generated tokens and saved folders.

Tasks: C language model, S sequence classification, which includes regression and several labels,
T token classification, A question answering, M masked language model, P multiple choice,
R `replaced_token_detection`. The first one is the default. All but S, T, A and P of an
encoder-decoder write text, and all families that read only texts have `features`, the model without
a head.]]

-- Returns the tasks as letters, or by their names where there are none.
local function tasks_of(row)
  local words, reads_texts = {}, row.kind ~= "images" and row.kind ~= "sound"
  for _, task in ipairs(row.tasks) do
    local letter = reads_texts and letters[task]
    if letter then
      words[#words + 1] = letter
    elseif not reads_texts then
      words[#words + 1] = "`" .. task .. "`"
    end
  end
  return table.concat(words, reads_texts and " " or ", ")
end

local function quoted(names)
  return #names > 0 and "`" .. table.concat(names, "`, `") .. "`" or ""
end

--- Returns the text of the page behind this first line.
return function(first)
  local lines, rows = { first .. head }, redco.models.families()
  for _, section in ipairs(sections) do
    lines[#lines + 1] = ("\n## %s\n"):format(section[2])
    lines[#lines + 1] = "| `model_type` | models | tasks | GGUF | remarks |\n"
      .. "| --- | --- | --- | --- | --- |"
    for _, row in ipairs(rows) do
      if row.kind == section[1] then
        lines[#lines + 1] = ("| %s | %s | %s | %s | %s |"):format(
          quoted { row.model_type, unpack(row.aliases) }, row.models, tasks_of(row),
          quoted(row.gguf), row.remarks or "")
      end
    end
  end
  return table.concat(lines, "\n") .. "\n"
end
