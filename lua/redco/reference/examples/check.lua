--- redco.check
redco.check.add {
  name = "links", title = "texts with a link", advice = "remove them",
  find = function(subject)
    local examples, count = subject.examples, 0
    for i = 1, examples.count do
      if examples.at(i):find "https?://" then count = count + 1 end
    end
    return count, examples.count
  end,
}

--- redco.check.add
redco.check.add {
  name = "short_answers", level = "error", needs = { "labelled" },
  title = "answers of fewer than 4 tokens",
  advice = "leave them out, or write more",
  find = function(subject)
    local numbers = {}
    for _, row in ipairs(subject.labelled) do
      if #row.output < 4 then numbers[#numbers + 1] = row.example end
    end
    local where = "examples " .. table.concat(numbers, ", ")
    return #numbers, #subject.labelled, where
  end,
}
