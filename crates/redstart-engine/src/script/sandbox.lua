-- What scripts see: the globals, read-only.
--
-- Gets the table of Rust functions and libraries; returns the globals, the true table behind them, and
-- the function that runs the code of a library of functions. There are such libraries if
-- `host.redis_at_load` is given.

local host = ...

local pcall, xpcall, next, type, loadstring = pcall, xpcall, next, type, loadstring
local setmetatable, unpack = setmetatable, unpack
local concat, byte, resume = table.concat, string.byte, coroutine.resume
local unwrap, unwrap_text = host.unwrap, host.unwrap_text
local tonumber, error = tonumber, error
-- Numbers beyond this do not stand for a place in a table.
local FAR = 2 ^ 30
-- So many a function of Lua's own may return.
local MOST_VALUES = 8000
-- A pattern of this length has no more captures than pcall has places for.
local FEW_CAPTURES = 30

-- Lua 5.1 has no read-only tables: a library is an empty table in front of the true one. Two rules
-- keep it read-only:
--   1. Nothing that a script can call returns a true table (a key of `behind` is a front, its value
--      the true table).
--   2. Everything that writes to a table without asking its metatable (rawset, table.insert,
--      table.remove, table.sort, table.setn) refuses the fronts.
local behind = host.protected
local locked = setmetatable({}, { __newindex = host.refuse, __metatable = false })
behind[locked] = {}

local function protect(library, missing)
    local front = {}
    behind[front] = library
    if missing then
        setmetatable(library, { __index = missing, __metatable = locked })
    end
    local metatable = { __index = library, __newindex = host.refuse, __metatable = locked }
    return setmetatable(front, metatable), metatable
end

local function settle(ok, value, ...)
    if ok then
        return ok, value, ...
    end
    return false, unwrap_text(value)
end

-- What a function of Lua's own returned. Its errors name it and the line that called it, as if nothing stood in between.
local function settle_own(name, ok, value, ...)
    if ok then
        return value, ...
    end
    if type(value) ~= "string" then
        error(value, 0)
    end
    host.raise_own(name, value, 3)
end

local function settle_object(ok, value, ...)
    if ok then
        return ok, value, ...
    end
    return false, unwrap(value)
end

-- Lua reads the name of a chunk up to the first zero byte, and would use a copy that nothing keeps alive.
local match = string.match
local function chunk_name(name)
    if type(name) == "string" then
        return match(name, "^[^%z]*")
    end
    return name
end

local globals = {
    _VERSION = _VERSION,
    assert = assert,
    -- Settings of the collector would outlive the script.
    collectgarbage = function(option, argument)
        if option == "stop" or option == "restart" then
            return 0
        elseif option == "setpause" or option == "setstepmul" then
            return 200
        end
        return collectgarbage(option or "collect", argument or 0)
    end,
    error = error,
    gcinfo = gcinfo,
    ipairs = ipairs,
    rawequal = rawequal,
    select = select,
    tonumber = tonumber,
    tostring = tostring,
    type = type,
    -- Lua counts the values with 32 bits, and a longer range would end the process.
    unpack = function(t, from, to)
        if type(t) == "table" then
            local first, last = tonumber(from or 1), tonumber(to or #t)
            if first and last then
                if first > -FAR and first < FAR and last > -FAR and last - first < MOST_VALUES then
                    return unpack(t, first, last)
                end
                host.raise_own("unpack", "too many results to unpack", 2)
            end
        end
        -- Not for values: pcall needs a place more than Lua has made sure of.
        return settle_own("unpack", pcall(unpack, t, from, to))
    end,
    getmetatable = getmetatable,
    setmetatable = host.setmetatable,
    rawset = host.rawset,
    pcall = function(...)
        return settle(pcall(...))
    end,
    xpcall = function(f, handler)
        return settle_object(xpcall(f, function(value)
            return handler(unwrap(value))
        end))
    end,
    -- Bytecode could break the interpreter: text only.
    loadstring = function(text, name)
        if type(text) == "string" and byte(text) == 27 then
            return nil, "attempt to load a binary chunk"
        end
        return loadstring(text, chunk_name(name or text))
    end,
    load = function(reader, name)
        local pieces = {}
        repeat
            local piece = reader()
            pieces[#pieces + 1] = piece
        until piece == nil or piece == ""
        local text = concat(pieces)
        if byte(text) == 27 then
            return nil, "attempt to load a binary chunk"
        end
        return loadstring(text, chunk_name(name or "=(load)"))
    end,
}

local rawget, pairs = rawget, pairs

globals.rawget = function(t, key)
    if type(t) ~= "table" then
        host.not_a_table("rawget", t)
    end
    return rawget(behind[t] or t, key)
end

globals.next = function(t, key)
    if type(t) ~= "table" then
        host.not_a_table("next", t)
    end
    return next(behind[t] or t, key)
end

globals.pairs = function(t)
    if type(t) ~= "table" then
        host.not_a_table("pairs", t)
    end
    local library = behind[t]
    if library then
        return function(_, key)
            return next(library, key)
        end, t, nil
    end
    return next, t, nil
end

local coroutines = {}
for name, f in pairs(coroutine) do
    coroutines[name] = f
end
coroutines.resume = function(...)
    return settle_object(resume(...))
end

-- The functions of `table` that write work below metatables.
local tables = {}
for name, f in pairs(table) do
    tables[name] = f
end

local insert, remove, sort, setn = table.insert, table.remove, table.sort, table.setn

local function writable(name, t)
    if type(t) ~= "table" then
        host.not_a_table(name, t, 3)
    elseif behind[t] then
        host.refuse_at(3)
    end
end

tables.insert = function(t, ...)
    if type(t) ~= "table" or behind[t] then
        writable("insert", t)
    end
    insert(t, ...)
end

tables.remove = function(t, ...)
    if type(t) ~= "table" or behind[t] then
        writable("remove", t)
    end
    local value = remove(t, ...)
    return value
end

tables.sort = function(t, ...)
    if type(t) ~= "table" or behind[t] then
        writable("sort", t)
    end
    sort(t, ...)
end

tables.setn = function(t, ...)
    if type(t) ~= "table" or behind[t] then
        writable("setn", t)
    end
    setn(t, ...)
end

-- Each of these characters costs a level of the C stack while a pattern is matched, and that has no limit of its own.
local COMPLEX, MOST_COMPLEX = "[?*+()-]", 400
local gsub = string.gsub

local function check_pattern(name, pattern)
    if #pattern > MOST_COMPLEX then
        local _, count = gsub(pattern, COMPLEX, "")
        if count > MOST_COMPLEX then
            host.raise_own(name, "pattern too complex", 3)
        end
    end
end

for _, name in ipairs({ "find", "gfind", "gmatch", "gsub", "match" }) do
    local own = string[name]
    string[name] = own and function(...)
        local _, pattern, third, plain = ...
        if type(pattern) == "string" and #pattern > FEW_CAPTURES then
            if name ~= "find" or not plain then
                check_pattern(name, pattern)
            end
            return own(...)
        elseif type(third) == "function" then
            -- Its calls may be nested as deeply as Lua allows, and its errors are the script's.
            return own(...)
        end
        return settle_own(name, pcall(own, ...))
    end
end

math.random, math.randomseed = host.random, host.randomseed

-- `("x"):rep(2)` looks functions up through this; scripts must not reach the table itself.
getmetatable("").__metatable = locked

globals.coroutine = protect(coroutines)
globals.math = protect(math)
globals.string = protect(string)
globals.table = protect(tables)
if host.redis_at_load then
    host.redis.breakpoint, host.redis.debug, host.redis.replicate_commands = nil, nil, nil
end
if not host.redis_at_load or host.valkey then
    globals.os = protect({ clock = os.clock })
end
globals.redis = protect(host.redis)
if host.valkey then
    globals.server = globals.redis
end
globals.cjson = protect(host.cjson)
globals.cmsgpack = protect(host.cmsgpack)
globals.struct = protect(host.struct)
globals.bit = protect(host.bit)

local visible, metatable = protect(globals, host.missing)
globals._G = visible

if not host.redis_at_load then
    return visible, globals
end

-- While the code of a library runs, it sees `redis` only, and little of that.
local at_load = { redis = protect(host.redis_at_load, host.missing) }
if host.valkey then
    at_load.server = at_load.redis
end
setmetatable(at_load, { __index = host.missing, __metatable = locked })

local function load(code)
    metatable.__index = at_load
    local ok, value = pcall(code)
    metatable.__index = globals
    return ok, value
end

return visible, globals, load
