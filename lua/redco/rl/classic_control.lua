--- The classic-control environments of gymnasium 1.4, with its names, figures and arithmetic in
--- float64. An entry has the facts of `redco.rl.environment`; its steps are those of one copy.
local ffi = require "ffi"
local rows = require "redco.rl.rows"
local torch = require "redco.torch"

local pi, sin, cos, abs, max = math.pi, math.sin, math.cos, math.abs, math.max

ffi.cdef "double fmod(double, double);"

-- An angle in [-pi, pi), rounded like Python's %, because Lua's % has another formula.
local function wrapped(angle)
  local rest = ffi.C.fmod(angle + pi, 2 * pi)
  return (rest < 0 and rest + 2 * pi or rest) - pi
end

-- NaN remains, unlike with math.min.
local function clamped(x, low, high)
  if x < low then return low end
  return x > high and high or x
end

-- Barto, Sutton and Anderson, 1983. The state: position, its velocity, angle, its velocity.
local cart_pole = {
  n_actions = 2, observation_size = 4, max_episode_steps = 500,
  start = function(uniform) return uniform(4) * 0.1 - 0.05 end,
  step = rows.step(4, function(s, action)
    local x_velocity, angle, velocity = s[1], s[2], s[3]
    local cosine, sine = cos(angle), sin(angle)
    local push = (action * 20 - 10 + 0.05 * velocity * velocity * sine) / 1.1
    local acceleration = (9.8 * sine - cosine * push)
      / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    s[0], s[2] = s[0] + 0.02 * x_velocity, angle + 0.02 * velocity
    s[1] = x_velocity + 0.02 * (push - 0.05 * acceleration * cosine / 1.1)
    s[3] = velocity + 0.02 * acceleration
    return 1, abs(s[0]) > 2.4 or abs(s[2]) > 24 * pi / 360
  end),
}

-- Sutton, 1996: two links; a torque moves the second. The state: two angles and their
-- velocities. Each link has length, mass and moment of inertia 1, and its centre at 0.5.
local function acrobot_derivatives(torque, angle1, angle2, velocity1, velocity2)
  local cosine, sine = cos(angle2), sin(angle2)
  local d1, d2 = cosine + 3.5, 0.5 * cosine + 1.25
  local phi2 = 4.9 * sin(angle1 + angle2)
  local phi1 = phi2 + 14.7 * sin(angle1) - 0.5 * velocity2 * sine * (velocity2 + 2 * velocity1)
  local acceleration2 = (torque + d2 / d1 * phi1 - 0.5 * velocity1 * velocity1 * sine - phi2)
    / (1.25 - d2 * d2 / d1)
  return velocity1, velocity2, -(d2 * acceleration2 + phi1) / d1, acceleration2
end

local acrobot = {
  n_actions = 3, observation_size = 6, max_episode_steps = 500,
  start = function(uniform) return uniform(4) * 0.2 - 0.1 end,
  step = rows.step(4, function(s, action)  -- the fourth-order Runge-Kutta method over 0.2 s
    local torque, a, b, c, d = action - 1, s[0], s[1], s[2], s[3]
    local a1, b1, c1, d1 = acrobot_derivatives(torque, a, b, c, d)
    local a2, b2, c2, d2 = acrobot_derivatives(torque, a + 0.1 * a1, b + 0.1 * b1, c + 0.1 * c1,
      d + 0.1 * d1)
    local a3, b3, c3, d3 = acrobot_derivatives(torque, a + 0.1 * a2, b + 0.1 * b2, c + 0.1 * c2,
      d + 0.1 * d2)
    local a4, b4, c4, d4 = acrobot_derivatives(torque, a + 0.2 * a3, b + 0.2 * b3, c + 0.2 * c3,
      d + 0.2 * d3)
    s[0] = wrapped(a + 0.2 / 6 * (a1 + 2 * (a2 + a3) + a4))
    s[1] = wrapped(b + 0.2 / 6 * (b1 + 2 * (b2 + b3) + b4))
    s[2] = clamped(c + 0.2 / 6 * (c1 + 2 * (c2 + c3) + c4), -4 * pi, 4 * pi)
    s[3] = clamped(d + 0.2 / 6 * (d1 + 2 * (d2 + d3) + d4), -9 * pi, 9 * pi)
    local is_high = -cos(s[0]) - cos(s[0] + s[1]) > 1
    return is_high and 0 or -1, is_high
  end),
  observe = rows.observe(4, 6, function(s, observation)
    observation[0], observation[1], observation[2], observation[3] = cos(s[0]), sin(s[0]),
      cos(s[1]), sin(s[1])
    observation[4], observation[5] = s[2], s[3]
  end),
}

-- Moore, 1990. The state: position and velocity of a car between hills at -1.2 and 0.6. Returns
-- whether the car is at the goal.
local function drive(s, force, goal)
  local velocity = clamped(s[1] + force - 0.0025 * cos(3 * s[0]), -0.07, 0.07)
  local position = clamped(s[0] + velocity, -1.2, 0.6)
  if position <= -1.2 then velocity = max(0, velocity) end  -- the left wall
  s[0], s[1] = position, velocity
  return position >= goal and velocity >= 0
end

local function in_valley(uniform)
  local position = uniform(1) * 0.2 - 0.6
  return torch.cat({ position, torch.zeros_like(position) }, 1)
end

local mountain_car = {
  n_actions = 3, observation_size = 2, max_episode_steps = 200, start = in_valley,
  step = rows.step(2, function(s, action) return -1, drive(s, 0.001 * (action - 1), 0.5) end),
}

local single = ffi.new "float[1]"

local function rounded(x)
  single[0] = x
  return single[0]
end

local mountain_car_continuous = {
  action_low = { -1 }, action_high = { 1 }, observation_size = 2, max_episode_steps = 999,
  start = in_valley,
  step = rows.step(2, function(s, action)
    local is_there = drive(s, 0.0015 * clamped(action, -1, 1), 0.45)
    -- gymnasium keeps this state in single precision, and its cost uses the unclipped action.
    s[0], s[1] = rounded(s[0]), rounded(s[1])
    return (is_there and 100 or 0) - 0.1 * action * action, is_there
  end),
}

-- The state: the angle from the top and its velocity.
local pendulum = {
  action_low = { -2 }, action_high = { 2 }, observation_size = 3, max_episode_steps = 200,
  start = function(uniform)
    return (uniform(2) * 2 - 1) * torch.tensor({ pi, 1 }, { dtype = "float64" })
  end,
  step = rows.step(2, function(s, action)
    local angle, velocity, torque = wrapped(s[0]), s[1], clamped(action, -2, 2)
    local cost = angle * angle + 0.1 * velocity * velocity + 0.001 * torque * torque
    s[1] = clamped(velocity + 0.05 * (15 * sin(s[0]) + 3 * torque), -8, 8)
    s[0] = s[0] + 0.05 * s[1]
    return -cost, false
  end),
  observe = rows.observe(2, 3, function(s, observation)
    observation[0], observation[1], observation[2] = cos(s[0]), sin(s[0]), s[1]
  end),
}

return {
  ["CartPole-v1"] = cart_pole, ["Acrobot-v1"] = acrobot, ["MountainCar-v0"] = mountain_car,
  ["MountainCarContinuous-v0"] = mountain_car_continuous, ["Pendulum-v1"] = pendulum,
}
