-- A filter for pandoc: code in backticks, equations as TeX, numbers of sections, and the arguments of
-- commands and environments that pandoc does not know, which it would drop.

local NUMBERED = tonumber(os.getenv("KERNLORE_NUMBERED") or "0") -- levels of headings with numbers
-- Commands whose arguments are no text.
local DROPPED = {}
for name in ([[label index vspace hspace cite citep citet pagestyle thispagestyle setlength addtolength
  setcounter addtocounter newpage clearpage includegraphics bibliography bibliographystyle rowcolor
  cellcolor columncolor definecolor hypersetup usepackage documentclass graphicspath addcontentsline
  markboth protect input include import subfile usetikzlibrary tikzset lstset lstdefinestyle lstdefinelanguage
  lstinputlisting newcommand renewcommand def let fontsize cline cmidrule pgfplotsset geometry color
  makeindex printindex glossary newacronym makeglossaries selectlanguage linespread sisetup captionsetup
  DeclareMathOperator newcounter theoremstyle newtheorem allowdisplaybreaks resizebox]]):gmatch("%a+") do
  DROPPED[name] = true
end
local REFERENCES = { ref = true, autoref = true, cref = true, Cref = true, eqref = true, nameref = true, pageref = true }
local DRAWN = { tikzpicture = true, picture = true, pgfpicture = true, axis = true }

local depth = 0

local function read(text)
  depth = depth + 1
  if depth > 12 then
    depth = depth - 1
    return { pandoc.Plain(pandoc.Str(text)) }
  end
  local ok, document = pcall(pandoc.read, text, "latex+raw_tex")
  local blocks = { pandoc.Plain(pandoc.Str(text)) }
  if ok then
    blocks = pandoc.walk_block(pandoc.Div(document.blocks), RAW).content
  end
  depth = depth - 1
  return blocks
end

local function arguments(text)
  local parts = {}
  for argument in text:gmatch("%b{}") do
    local inside = argument:sub(2, -2)
    if inside:match("%w") then
      table.insert(parts, inside)
    end
  end
  return table.concat(parts, " ")
end

local function raw_inline(element)
  if element.format ~= "latex" and element.format ~= "tex" then
    return nil
  end
  local name = element.text:match("^\\(%a+)")
  if name == nil or DROPPED[name] then
    return {}
  end
  if REFERENCES[name] then
    local id = arguments(element.text)
    return pandoc.Link(id, "#" .. id, "", { reference = id })
  end
  local inside = arguments(element.text)
  return inside == "" and {} or pandoc.utils.blocks_to_inlines(read(inside), { pandoc.Space() })
end

local function raw_block(element)
  if element.format ~= "latex" and element.format ~= "tex" then
    return nil
  end
  local text = element.text
  if text:match("^\\appendix") then
    return pandoc.Div({}, { class = "appendix" })
  end
  local name, inside = text:match("^\\begin{([^{}]*)}(.*)\\end{[^{}]*}%s*$")
  if name ~= nil then
    if DRAWN[name] then
      return {}
    end
    inside = inside:gsub("^%s*%b[]", ""):gsub("^%s*%b{}", "")
    return read(inside)
  end
  name = text:match("^\\(%a+)")
  if name ~= nil and DROPPED[name] then
    return {}
  end
  inside = arguments(text)
  return inside == "" and {} or read(inside)
end

RAW = { RawInline = raw_inline, RawBlock = raw_block }

local SHOWN = {
  Code = function(element)
    return pandoc.Str("`" .. element.text .. "`")
  end,
  Math = function(element)
    local mark = element.mathtype == "DisplayMath" and "$$" or "$"
    return pandoc.Str(mark .. element.text .. mark)
  end,
  Cite = function(element)
    local ids = element.citations:map(function(citation) return citation.id end)
    return pandoc.Str("[" .. table.concat(ids, ", ") .. "]")
  end,
  Note = function(element)
    local inside = pandoc.utils.blocks_to_inlines(element.content)
    return { pandoc.Space(), pandoc.Str("("), pandoc.Span(inside), pandoc.Str(")") }
  end,
  Superscript = function(element)
    return { pandoc.Str("^"), pandoc.Span(element.content) }
  end,
  CodeBlock = function(element)
    local caption = element.attributes.caption
    local language = element.attributes.language or element.classes[1]
    local block = pandoc.CodeBlock(element.text)
    if language then
      block.classes = { "language-" .. language:lower():gsub("^%b[]", "") }
    end
    if caption and caption:match("%w") then
      local shown = pandoc.read(caption, "latex").blocks
      return { pandoc.Div(shown, { class = "caption" }), block }
    end
    return block
  end,
}

local function letter(number)
  return string.char(64 + math.min(number, 26))
end

-- Numbers of headings by their identifiers; headings get them in front.
local function number_headings(document)
  local counters, numbers, first = { 0, 0, 0, 0, 0, 0 }, {}, false
  local function visit(element)
    if element.t == "Div" and element.classes:includes("appendix") then
      counters, first = { 0, 0, 0, 0, 0, 0 }, true
    elseif element.t == "Header" and element.level <= NUMBERED
      and not element.classes:includes("unnumbered") then
      counters[element.level] = counters[element.level] + 1
      for level = element.level + 1, 6 do
        counters[level] = 0
      end
      local parts = {}
      for level = 1, element.level do
        parts[level] = tostring(counters[level])
      end
      if first then
        parts[1] = letter(counters[1])
      end
      local number = table.concat(parts, ".")
      numbers[element.identifier] = number
      element.content:insert(1, pandoc.Space())
      element.content:insert(1, pandoc.Str(number))
    end
    return element
  end
  local blocks = {}
  local function walk(list)
    for index, block in ipairs(list) do
      if block.t == "Div" then
        visit(block)
        block.content = walk(block.content)
        list[index] = block
      else
        list[index] = visit(block)
      end
    end
    return list
  end
  document.blocks = walk(document.blocks)
  return document:walk({
    Link = function(link)
      local number = numbers[link.attributes.reference or ""]
      if number then
        link.content = { pandoc.Str(number) }
      end
      return link
    end,
  })
end

function Pandoc(document)
  document = document:walk(RAW)
  if NUMBERED > 0 then
    document = number_headings(document)
  end
  return document:walk(SHOWN)
end
