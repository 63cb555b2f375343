-- POSTs of one body to many endpoints in turn, for wrk: wrk -s post.lua URL -- DIRECTORY
--
-- DIRECTORY holds `paths` (one a line), `headers` (one "Name: value" a line) and `body`. The last line of the output is
-- a JSON object.

local posts, last = {}, 0

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

function init(args)
  local directory = assert(args[1], "the directory of paths, headers and body is missing")
  local body, headers = read(directory .. "/body"), {}
  for line in io.lines(directory .. "/headers") do
    local name, value = line:match("^([^:]+): (.*)$")
    headers[name] = value
  end
  for path in io.lines(directory .. "/paths") do
    posts[#posts + 1] = wrk.format("POST", path, headers, body)
  end
end

function request()
  last = last % #posts + 1
  return posts[last]
end

function done(summary, latency)
  local errors = summary.errors
  local counts = '"requests": %d, "seconds": %.3f, "p99_us": %d'
  local faults = '"refused": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d'
  io.write(string.format(
    "{" .. counts .. ", " .. faults .. "}\n",
    summary.requests, summary.duration / 1e6, latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
