--- Work of a script's functions, shared among the processes of a run.

--- Returns the results of f(1) to f(n), each computed by one process: trees, numbers or texts. All
--- processes must call it, and all get all results. Without a deployer each computes all.
return function(deployer, n, f)
  local results = {}
  if not deployer or deployer.n_processes == 1 then
    for i = 1, n do results[i] = f(i) end
    return results
  end
  if n == 0 then return results end
  local size = deployer.n_processes
  local parts = deployer:alone(function()
    local own = {}
    for i = deployer.process_id + 1, n, size do own[#own + 1] = f(i) end
    return own
  end)
  for i = 1, n do results[i] = parts[(i - 1) % size + 1][math.floor((i - 1) / size) + 1] end
  return results
end
