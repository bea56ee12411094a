"""Conversations: template rendering, the next prompt as a difference, the tree of turns."""

from ipyllama.chat.chat import Chat as Chat
from ipyllama.chat.ledger import PromptPlan as PromptPlan
from ipyllama.chat.ledger import next_prompt as next_prompt
from ipyllama.chat.template import ChatTemplate as ChatTemplate
from ipyllama.chat.turn import Turn as Turn
