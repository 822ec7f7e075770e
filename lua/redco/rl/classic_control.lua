--- The classic-control environments of gymnasium 1.4, with its names, figures and arithmetic in
--- float64. An entry has the facts of `redco.rl.environment`.
local torch = require "redco.torch"

local pi = math.pi

-- An angle in [-pi, pi).
local function wrapped(angle) return (angle + pi):remainder(2 * pi) - pi end

local function columns(...) return torch.stack({ ... }, 1) end

-- Barto, Sutton and Anderson, 1983. The state: position, its velocity, angle, its velocity.
local cart_pole = {
  n_actions = 2, observation_size = 4, max_episode_steps = 500,
  start = function(uniform) return uniform(4) * 0.1 - 0.05 end,
  step = function(state, action)
    local x, x_velocity, angle, velocity = unpack(state:unbind(1))
    local cos, sin = angle:cos(), angle:sin()
    local push = (action * 20 - 10 + 0.05 * velocity:square() * sin) / 1.1
    local acceleration = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos:square() / 1.1))
    local x_acceleration = push - 0.05 * acceleration * cos / 1.1
    x, angle = x + 0.02 * x_velocity, angle + 0.02 * velocity
    state = columns(x, x_velocity + 0.02 * x_acceleration, angle, velocity + 0.02 * acceleration)
    return state, torch.ones_like(x), x:abs():gt(2.4):logical_or_(angle:abs():gt(24 * pi / 360))
  end,
}

-- Sutton, 1996: two links, of which a torque moves the second. The state: two angles and their
-- velocities. Each link has length, mass and moment of inertia 1, and its centre at 0.5.
local function acrobot_derivatives(state, torque)
  local angle1, angle2, velocity1, velocity2 = unpack(state:unbind(1))
  local cos, sin = angle2:cos(), angle2:sin()
  local d1, d2 = cos + 3.5, 0.5 * cos + 1.25
  local phi2 = 4.9 * (angle1 + angle2):sin()
  local phi1 = phi2 + 14.7 * angle1:sin() - 0.5 * velocity2 * sin * (velocity2 + 2 * velocity1)
  local acceleration2 = (torque + d2 / d1 * phi1 - 0.5 * velocity1:square() * sin - phi2)
    / (1.25 - d2:square() / d1)
  return columns(velocity1, velocity2, -(d2 * acceleration2 + phi1) / d1, acceleration2)
end

local acrobot = {
  n_actions = 3, observation_size = 6, max_episode_steps = 500,
  start = function(uniform) return uniform(4) * 0.2 - 0.1 end,
  step = function(state, action)  -- the fourth-order Runge-Kutta method over 0.2 s
    local torque = action - 1
    local k1 = acrobot_derivatives(state, torque)
    local k2 = acrobot_derivatives(state + 0.1 * k1, torque)
    local k3 = acrobot_derivatives(state + 0.1 * k2, torque)
    local k4 = acrobot_derivatives(state + 0.2 * k3, torque)
    state = state + 0.2 / 6 * (k1 + 2 * (k2 + k3) + k4)
    local angle1, angle2, velocity1, velocity2 = unpack(state:unbind(1))
    angle1, angle2 = wrapped(angle1), wrapped(angle2)
    local terminated = (-angle1:cos() - (angle1 + angle2):cos()):gt(1)
    state = columns(angle1, angle2, velocity1:clamp(-4 * pi, 4 * pi),
      velocity2:clamp(-9 * pi, 9 * pi))
    return state, terminated:to(state.dtype) - 1, terminated
  end,
  observe = function(state)
    local angle1, angle2, velocity1, velocity2 = unpack(state:unbind(1))
    return columns(angle1:cos(), angle1:sin(), angle2:cos(), angle2:sin(), velocity1, velocity2)
  end,
}

-- Moore, 1990. The state: position and velocity of a car between hills at -1.2 and 0.6.
local function drive(state, force, goal)
  local position, velocity = unpack(state:unbind(1))
  velocity = (velocity + force - 0.0025 * (3 * position):cos()):clamp(-0.07, 0.07)
  position = (position + velocity):clamp(-1.2, 0.6)
  velocity = torch.where(position:le(-1.2), velocity:clamp_min(0), velocity)  -- the left wall
  return columns(position, velocity), position:ge(goal):logical_and_(velocity:ge(0))
end

local function in_valley(uniform)
  local position = uniform(1) * 0.2 - 0.6
  return torch.cat({ position, torch.zeros_like(position) }, 1)
end

local mountain_car = {
  n_actions = 3, observation_size = 2, max_episode_steps = 200, start = in_valley,
  step = function(state, action)
    local terminated
    state, terminated = drive(state, 0.001 * (action - 1), 0.5)
    return state, torch.full_like(action, -1), terminated
  end,
}

local mountain_car_continuous = {
  action_low = { -1 }, action_high = { 1 }, observation_size = 2, max_episode_steps = 999,
  start = in_valley,
  step = function(state, action)
    action = action:squeeze(1)
    local terminated
    state, terminated = drive(state, 0.0015 * action:clamp(-1, 1), 0.45)
    -- gymnasium keeps this state in single precision, and charges for what it clips.
    return state:float():to(state.dtype), 100 * terminated:to(state.dtype) - 0.1 * action:square(),
      terminated
  end,
}

-- The state: the angle from the top and its velocity.
local pendulum = {
  action_low = { -2 }, action_high = { 2 }, observation_size = 3, max_episode_steps = 200,
  start = function(uniform)
    return (uniform(2) * 2 - 1) * torch.tensor({ pi, 1 }, { dtype = "float64" })
  end,
  step = function(state, action)
    local angle, velocity = unpack(state:unbind(1))
    action = action:squeeze(1):clamp(-2, 2)
    local cost = wrapped(angle):square() + 0.1 * velocity:square() + 0.001 * action:square()
    velocity = (velocity + 0.05 * (15 * angle:sin() + 3 * action)):clamp(-8, 8)
    return columns(angle + 0.05 * velocity, velocity), -cost, torch.zeros_like(angle):bool()
  end,
  observe = function(state)
    local angle, velocity = unpack(state:unbind(1))
    return columns(angle:cos(), angle:sin(), velocity)
  end,
}

return {
  ["CartPole-v1"] = cart_pole, ["Acrobot-v1"] = acrobot, ["MountainCar-v0"] = mountain_car,
  ["MountainCarContinuous-v0"] = mountain_car_continuous, ["Pendulum-v1"] = pendulum,
}
