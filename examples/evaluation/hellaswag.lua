-- HellaSwag: which sentence goes on. https://rowanzellers.com/hellaswag, the validation split.
local function plain(text)
  text = text:gsub("^%s+", ""):gsub("%s+$", ""):gsub(" %[title%]", ". "):gsub("%[.-%]", "")
  return (text:gsub("  ", " "))
end

local function capitalized(text) return text:sub(1, 1):upper() .. text:sub(2):lower() end

return {
  data = "data/hellaswag.jsonl",
  output_type = "multiple_choice",
  process_doc = function(doc)
    local choices = {}
    for i, ending in ipairs(doc.endings) do choices[i] = plain(ending) end
    return {
      query = plain(("%s: %s %s"):format(doc.activity_label, doc.ctx_a, capitalized(doc.ctx_b))),
      choices = choices, label = tonumber(doc.label),
    }
  end,
  doc_to_text = "query",
  doc_to_choice = "choices",
  doc_to_target = "label",
  metadata = { version = 1.0 },
}
