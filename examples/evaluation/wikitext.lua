-- WikiText: the perplexity of whole pages, {page = ...}, as they were before words were separated.
local replaced = {
  { " @-@ ", "-" }, { " @,@ ", "," }, { " @.@ ", "." },
  { " : ", ": " }, { " ; ", "; " }, { " . ", ". " }, { " ! ", "! " }, { " ? ", "? " },
  { " , ", ", " },
}

local enclosed = { { "%(%s*([^%)]-)%s*%)", "(%1)" }, { "%[%s*([^%]]-)%s*%]", "[%1]" },
  { "{%s*([^}]-)%s*}", "{%1}" }, { '"%s*([^"]-)%s*"', '"%1"' }, { "'%s*([^']-)%s*'", "'%1'" } }

local last = { { "= = = =", "====" }, { "= = =", "===" }, { "= =", "==" }, { " ° ", "°" },
  { " \n", "\n" }, { "\n ", "\n" }, { " N ", " 1 " }, { " 's", "'s" } }

local function replace_all(text, rows)
  for _, row in ipairs(rows) do
    text = text:gsub(row[1]:gsub("%p", "%%%0"), (row[2]:gsub("%%", "%%%%")))
  end
  return text
end

return {
  data = "data/wikitext.jsonl",
  output_type = "loglikelihood_rolling",
  doc_to_target = function(doc)
    local text = replace_all(doc.page:gsub("s '", "s'"), replaced)
    for _, row in ipairs(enclosed) do text = text:gsub(row[1], row[2]) end
    return replace_all(text, last)
  end,
  doc_to_count = "page",  -- perplexities are those of its words and bytes
  metadata = { version = 2.0 },
}
