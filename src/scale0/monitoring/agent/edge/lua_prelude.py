"""The Lua code that runs before a check and around it, in the same fresh state.

It defines what a check can use, and returns its result to `lua_process`. Invariants: a check cannot reach files,
processes, bytecode, finalizers or Python objects; only strings, numbers and nil of limited length go back.
"""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 16_000
MAX_NAME_BYTES: Final = 512
MAX_METRICS: Final = 500
MAX_STATE_BYTES: Final = 64

FIELDS: Final = 7
"""Values returned for each metric: name, value, unit, warn, crit, min, max."""

PRELUDE: Final = f"""
local code, name, args, ask = ...
local compile, type, pcall, rawget, rawlen, tostring = load, type, pcall, rawget, rawlen, tostring
local error, sub, unpack, setmetatable, mathtype = error, string.sub, table.unpack, setmetatable, math.type

io, package, debug, python, require, dofile, loadfile, load, collectgarbage, print, warn = nil
os = {{time = os.time, clock = os.clock, date = os.date, difftime = os.difftime}}
string.dump = nil

-- A finalizer would run when the state is closed, after the check has returned.
_G.setmetatable = function(object, meta)
    if type(meta) == "table" and rawget(meta, "__gc") ~= nil then
        error("__gc is not available to checks", 2)
    end
    return setmetatable(object, meta)
end

local function about(question, what)
    local first, second, c, d, e, f, g = ask(question, what)
    if first == false then
        return nil, second
    end
    return first, second, c, d, e, f, g
end

local function path(what, where)
    if type(where) ~= "string" then
        error("host." .. what .. " needs a path", 3)
    end
    return where
end

host = {{
    read = function(where) return about("read", path("read", where)) end,
    uptime = function() return (about("uptime", "")) end,
    name = function() return (about("name", "")) end,
    cpus = function() return (about("cpus", "")) end,
    load = function()
        local one, five, fifteen = about("load", "")
        if one == nil then return nil, five end
        return {{one, five, fifteen}}
    end,
    memory = function()
        local total, available, free, buffers, cached, swap, swap_free = about("memory", "")
        if total == nil then return nil, available end
        return {{total = total, available = available, free = free, buffers = buffers, cached = cached,
            swap_total = swap, swap_free = swap_free}}
    end,
    disk = function(where)
        local total, used, available, inodes, inodes_free = about("disk", path("disk", where))
        if total == nil then return nil, used end
        return {{total = total, used = used, available = available, inodes = inodes, inodes_free = inodes_free}}
    end,
}}

local function text(value, most)
    if type(value) == "string" then return sub(value, 1, most) end
    if type(value) == "number" then return tostring(value) end
    return nil
end

local function number(value)
    if mathtype(value) then return value + 0.0 end
    return nil
end

local function failed(what, why)
    if type(why) ~= "string" and type(why) ~= "number" then why = "an error that is a " .. type(why) end
    return "failed", what .. sub(why, 1, {MAX_MESSAGE_BYTES})
end

-- Through local variables: the check itself may change its globals.
local chunk, why = compile(code, "=" .. name, "b")
if not chunk then return failed("", why) end
local fine, check = pcall(chunk)
if not fine then return failed("", check) end
if type(check) ~= "function" then return failed("", name .. ": the file must return a function") end
local fine, result = pcall(check, args or {{}})
if not fine then return failed("", result) end
if type(result) ~= "table" then return failed("", name .. ": the check returned a " .. type(result) .. ", no table") end

local metrics = rawget(result, "metrics")
local out, count = {{}}, 0
if type(metrics) == "table" then
    for index = 1, rawlen(metrics) do
        if count >= {MAX_METRICS} then break end
        local metric = rawget(metrics, index)
        if type(metric) == "table" then
            local at = count * {FIELDS}
            out[at + 1] = text(rawget(metric, "name"), {MAX_NAME_BYTES})
            out[at + 2] = number(rawget(metric, "value"))
            out[at + 3] = text(rawget(metric, "unit"), 64)
            out[at + 4] = number(rawget(metric, "warn"))
            out[at + 5] = number(rawget(metric, "crit"))
            out[at + 6] = number(rawget(metric, "min"))
            out[at + 7] = number(rawget(metric, "max"))
            count = count + 1
        end
    end
end
return text(rawget(result, "state"), {MAX_STATE_BYTES}) or "",
    text(rawget(result, "message"), {MAX_MESSAGE_BYTES}) or "",
    unpack(out, 1, count * {FIELDS})
"""
