from raypid.run.agent import Agent as Agent
